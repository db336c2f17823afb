// SPDX-License-Identifier: Apache-2.0
#include "shift/quantise/quantise.h"

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/linalg/large.h"
#include "shift/quantise/mixture.h"
#include "shift/quantise/round_matrix.h"
#include "shift/sums/row_norm.h"

namespace shiftrt {

namespace {

class Quantiser {
 public:
  Quantiser(const ShiftJob& job, const DepthPlan& plan, const QuantiseSpec& spec)
      : job_(job),
        weights_(job.model.weights),
        config_(weights_->config),
        plan_(plan),
        spec_(spec),
        mixture_(FindMixture(spec.mixture)),
        norm_(job.context, weights_),
        decoder_(job.context, weights_, DepthPlan::Original(config_.layers)) {
    report_.mixture = mixture_.name;
  }

  QuantisedPlan Run() {
    report_.bytes_before = report_.bytes_after = plan_.Bytes(*weights_);
    const int64_t work = CountWork();
    if (work == 0) return {plan_, std::move(report_)};
    job_.progress.Begin("rounding weights (millions)", work / kMillion);
    const linalg::ReportsSolves reports(job_.progress);
    for (const Stage& stage : plan_.stages)
      stage.Visit([&](const BlockStage& block) { Block(block); },
                  [&](const AdapterStage&) {
                    pending_.push_back(stage);
                    done_.stages.push_back(stage);
                  });
    done_.output = Output();
    job_.progress.End();
    report_.bytes_after = done_.Bytes(*weights_);
    report_.tokens = tokens_;
    if (size_ > 0) report_.error = error_ / size_;
    return {std::move(done_), std::move(report_)};
  }

 private:
  // A tensor that has fewer bits already gains nothing by more of them.
  static bool ToBeRounded(const TensorView& tensor, BlockType type) {
    if (PlainType(type) || tensor.dtype == DTypeOfBlocks(type)) return false;
    return BytesOf(tensor.dtype, tensor.elements()) >= BytesOf(DTypeOfBlocks(type), tensor.elements());
  }
  // Calls visit(row, type) for each matrix of some halves of kept block `index` that is to be rounded.
  template <typename Visit>
  void ForEachToBeRounded(const BlockWeights& block, Halves halves, int64_t index, const Visit& visit) const {
    ForEachTensor(block, halves, [&](const BlockTensor& row, const TensorView& tensor) {
      // llama.cpp rounds no routers, whose errors would change the choice of experts, and no single row.
      const bool routes = row.member == &BlockWeights::router || row.member == &BlockWeights::shared_weight;
      if (row.kind != BlockTensor::Kind::kMatrix || routes) return;
      const BlockType type = TypeIn(mixture_, row, index, plan_.blocks(), tensor.cols());
      if (ToBeRounded(tensor, type)) visit(row, type);
    });
  }
  bool HeadToBeRounded() const { return ToBeRounded(plan_.Output(*weights_).head, HeadTypeIn(mixture_, config_)); }
  bool TableToBeRounded() const {
    return !config_.tied_head && plan_.Output(*weights_).table.empty() &&
           ToBeRounded(weights_->embedding, TableTypeIn(mixture_, config_));
  }

  // The number of weights that are to be rounded.
  int64_t CountWork() const {
    int64_t work = HeadToBeRounded() ? weights_->head.elements() : 0, index = 0;
    if (TableToBeRounded()) work += weights_->embedding.elements();
    for (const BlockStage* stage : plan_.Blocks()) {
      const BlockWeights& block = TensorsOf(*weights_, *stage);
      ForEachToBeRounded(block, stage->halves, index++,
                         [&](const BlockTensor& row, BlockType) { work += row.In(block).elements(); });
    }
    return work;
  }

  // The embeddings of the text.
  void Start() {
    Check(!job_.calibration.fit.empty(), "there is no calibration text, which the rounding reads");
    Decoder embedding(job_.context, weights_, DepthPlan::Original(config_.layers),
                      {{0, TapPoint::kInput, [&](const Rows& rows, const Batch&) { streams_.back().Set(rows); }}});
    for (const Batch& batch : job_.calibration.fit) {
      if (tokens_ >= kRoundingTokens) break;
      batches_.push_back(&batch);
      tokens_ += batch.size();
      streams_.emplace_back();
      embedding.Forward(batch, /*taps_only=*/true);
    }
  }

  // Takes the streams through the stages that they have yet to run. They run only where something is measured.
  void AdvanceStreams() {
    if (streams_.empty()) Start();
    for (size_t b = 0; b < streams_.size() && !pending_.empty(); ++b) {
      streams_[b].Set(decoder_.Resume(*batches_[b], streams_[b].rows(), pending_));
      job_.progress.Advance(0);  // this may interrupt the work
    }
    pending_.clear();
  }

  // The sums of what the matrices of some halves read.
  struct Inputs {
    std::optional<InputGram> attention, heads, mlp, activation;

    std::optional<InputGram>& Of(const BlockTensor& row) {
      if (row.input == Axis::kHeads) return heads;
      if (row.input == Axis::kIntermediate) return activation;
      return row.half == Halves::kAttention ? attention : mlp;
    }
  };

  // The input of the first matrices of a half.
  Rows NormOf(const Rows& stream, const BlockWeights& block, Halves half) {
    const bool attention = half == Halves::kAttention, shared = config_.block.shared_norm;
    const TensorView& weight = shared ? block.shared_norm : attention ? block.input_norm : block.post_norm;
    const TensorView& bias = shared ? block.shared_norm_bias : attention ? block.input_norm_bias : block.post_norm_bias;
    return norm_.Of(stream, {weight, bias});
  }

  // Runs the halves of `stage` from the streams, which stay where they are, and adds up what its matrices read. An
  // error that is added to the stream is divided by the size of the stream in the next norm. So the inputs of the last
  // projections are, too: without that, the first token of a text, whose stream is a thousand times larger in many
  // models, would decide the sums.
  Inputs Measure(const BlockStage& stage) {
    AdvanceStreams();
    Inputs inputs;
    KeptRows heads, activation;
    std::vector<Tap> taps;
    const auto keep = [&](TapPoint point, KeptRows& kept) {
      taps.push_back({stage.layer, point, [&kept](const Rows& rows, const Batch&) { kept.Set(rows); }});
    };
    if (RunsAttention(stage.halves)) {
      inputs.attention.emplace(config_.hidden);
      inputs.heads.emplace(TensorsOf(*weights_, stage).o.cols());
      keep(TapPoint::kHeads, heads);
    }
    if (RunsMlp(stage.halves)) {
      inputs.mlp.emplace(config_.hidden);
      inputs.activation.emplace(MlpUnits(TensorsOf(*weights_, stage)));
      keep(TapPoint::kActivation, activation);
    }
    const BlockWeights& block = TensorsOf(*weights_, stage);
    Decoder tapped(job_.context, weights_, DepthPlan::Original(config_.layers), std::move(taps));
    const Stage only = stage;
    for (size_t b = 0; b < streams_.size(); ++b) {
      const Rows stream = streams_[b].rows();
      const std::vector<float> first = FirstTokens(*batches_[b]);
      if (inputs.attention)
        inputs.attention->Add(job_.context, NormOf(stream, block, Halves::kAttention).host(), first);
      if (inputs.mlp) inputs.mlp->Add(job_.context, NormOf(stream, block, Halves::kMlp).host(), first);
      const std::vector<float> sizes = RootMeanSquares(tapped.Resume(*batches_[b], stream, {&only, 1}).host());
      if (inputs.heads) inputs.heads->Add(job_.context, heads.rows().host(), sizes);
      if (inputs.activation) inputs.activation->Add(job_.context, activation.rows().host(), sizes);
      job_.progress.Advance(0);
    }
    return inputs;
  }

  // The sizes by which the inputs of a half are divided. The first token of a sequence counts as much as all others
  // together: many heads attend to it whenever they have nothing else to attend to, so that an error in its key or
  // value reaches every token. Without that, feedback makes good for the errors of all other tokens at its cost.
  static std::vector<float> FirstTokens(const Batch& batch) {
    std::vector<float> sizes(batch.size(), 1.0f);
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const int64_t begin = batch.offsets[s], tokens = batch.offsets[s + 1] - begin;
      if (tokens > 1) sizes[begin] = 1 / std::sqrt(static_cast<float>(tokens - 1));
    }
    return sizes;
  }

  static std::vector<float> RootMeanSquares(MatrixView<const float> rows) {
    std::vector<float> sizes(rows.rows);
    for (int64_t i = 0; i < rows.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < rows.cols; ++j) sum += static_cast<double>(rows(i, j)) * rows(i, j);
      sizes[i] = static_cast<float>(std::sqrt(sum / static_cast<double>(rows.cols)));
    }
    return sizes;
  }

  void Block(const BlockStage& block) {
    const auto own = std::make_shared<OwnBlock>(*weights_, block);
    std::vector<Halves> parts = {block.halves};
    if (block.halves == Halves::kBoth && !config_.block.parallel) parts = {Halves::kAttention, Halves::kMlp};
    bool changed = false;
    for (const Halves part : parts) {
      const BlockStage stage = {block.layer, part, OwnBlock::Share(own)};
      changed |= RoundPart(stage, *own);
      pending_.emplace_back(stage);
    }
    ++index_;
    done_.stages.emplace_back(changed ? BlockStage{block.layer, block.halves, OwnBlock::Share(own)} : block);
  }

  // Rounds the matrices of the halves of `stage`, whose tensors are those of `own`.
  bool RoundPart(const BlockStage& stage, OwnBlock& own) {
    std::vector<std::pair<const BlockTensor*, BlockType>> wanted;
    ForEachToBeRounded(own.weights(), stage.halves, index_,
                       [&](const BlockTensor& row, BlockType type) { wanted.emplace_back(&row, type); });
    if (wanted.empty()) return false;
    Inputs inputs;
    if (spec_.reads_text()) inputs = Measure(stage);
    std::map<const void*, Matrix<float>> roots;  // by the Gram matrix that they are of
    bool changed = false;
    for (const auto& [row, type] : wanted) {
      std::optional<InputGram>& gram = inputs.Of(*row);
      Matrix<float>& root = roots[&gram];
      if (gram && root.empty()) root = gram->TakeRoot(job_.context);
      const TensorView tensor = row->In(own.weights());
      RoundedMatrix rounded = Round(row->name, tensor, type, root);
      const bool last = row->input == Axis::kHeads || row->input == Axis::kIntermediate;
      if (last && type != BlockType::kQ8_0 && !root.empty() && DisturbsStream(rounded, type)) {
        if (tensor.dtype == DType::kQ8_0) continue;
        rounded = RoundMatrix(job_.context, row->name, tensor, BlockType::kQ8_0, root.view(), spec_.rounding);
        ++report_.eight_bits;
      }
      Count(rounded);
      own.Replace(*row, rounded.tensor, rounded.storage);
      changed = true;
    }
    return changed;
  }

  // True if the error that a last projection adds to the stream, as a share of the stream's square, is more than
  // 4^-bits. Those of a model are below as a rule, because a block adds little to its stream. A projection that carries
  // the update of removed blocks, too, adds as much as the stream has, and without this SmolLM2 was lost by rounding
  // it.
  bool DisturbsStream(const RoundedMatrix& rounded, BlockType type) const {
    const BlockTraits& traits = TraitsOf(type);
    const double bits = 8.0 * static_cast<double>(traits.bytes) / static_cast<double>(traits.elements);
    return rounded.error > std::pow(4, -bits) * static_cast<double>(tokens_ * rounded.tensor.rows());
  }

  // Without a root, nothing was measured, and all inputs count alike.
  RoundedMatrix Round(const char* name, const TensorView& tensor, BlockType type, const Matrix<float>& root) {
    RoundedMatrix rounded =
        RoundMatrix(job_.context, name, tensor, type, root.view(), root.empty() ? Rounding::kNearest : spec_.rounding);
    // Rounded so that the sum over all matrices is the total.
    const int64_t before = counted_ / kMillion;
    counted_ += tensor.elements();
    job_.progress.Advance(counted_ / kMillion - before);
    return rounded;
  }
  // Adds a matrix to the report.
  void Count(const RoundedMatrix& rounded) {
    error_ += rounded.error;
    size_ += rounded.size;
    ++report_.matrices;
  }

  // The root for the head, which reads the norm of the last streams.
  Matrix<float> RootOfHead(const OutputWeights& output) {
    AdvanceStreams();
    InputGram gram(config_.hidden);
    for (const KeptRows& stream : streams_)
      gram.Add(job_.context, norm_.Of(stream.rows(), {output.final_norm, output.final_norm_bias}).host());
    return gram.TakeRoot(job_.context);
  }

  std::shared_ptr<const OutputWeights> Output() {
    if (!HeadToBeRounded() && !TableToBeRounded()) return plan_.output;
    const auto own = std::make_shared<OwnOutput>(*weights_, plan_);
    const bool table = TableToBeRounded();
    if (HeadToBeRounded()) {
      const OutputWeights output = own->weights();
      const Matrix<float> root = spec_.reads_text() ? RootOfHead(output) : Matrix<float>();
      const RoundedMatrix rounded = Round("the head", output.head, HeadTypeIn(mixture_, config_), root);
      Count(rounded);
      own->Replace(&OutputWeights::head, rounded.tensor, rounded.storage);
      if (plan_.TiedHead(*weights_)) own->Replace(&OutputWeights::table, rounded.tensor, rounded.storage);
    }
    if (table) {  // its rows are no products' operands: no input weighs their errors
      const RoundedMatrix rounded =
          Round("the embedding table", weights_->embedding, TableTypeIn(mixture_, config_), {});
      Count(rounded);
      own->Replace(&OutputWeights::table, rounded.tensor, rounded.storage);
    }
    return OwnOutput::Share(own);
  }

  static constexpr int64_t kMillion = 1'000'000;

  const ShiftJob& job_;
  const std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  const DepthPlan& plan_;
  const QuantiseSpec& spec_;
  const Mixture& mixture_;
  RowNorm norm_;
  Decoder decoder_;
  std::vector<const Batch*> batches_;
  std::vector<KeptRows> streams_;    // by batch; none before the first measurement
  std::vector<Stage> pending_;       // stages that the streams have yet to run
  int64_t tokens_ = 0;               // the tokens of the text
  int64_t index_ = 0, counted_ = 0;  // blocks and weights so far
  double error_ = 0, size_ = 0;
  DepthPlan done_;
  QuantiseReport report_;
};

}  // namespace

void CheckRounds(const Context& context, const Weights& weights) {
  if (weights.split()) FailUsage(Field("quantize"), "it needs the whole model in each process");
  if (context.device == Device::kCuda)
    FailUsage(Field("quantize"), "a GPU's products read no quantised matrices: round on the CPU (--device cpu)");
}

void CheckRounds(const QuantiseSpec& spec, const ModelConfig& config) {
  if (config.block.mixed && spec.reads_text())
    FailUsage(Field("quantize"),
              "{}: the rounding reads the inputs of one MLP, and each expert of a mixture has others; {},nearest reads "
              "no text",
              Format(spec), spec.mixture);
}

QuantisedPlan Quantise(const ShiftJob& job, const DepthPlan& plan, const QuantiseSpec& spec) {
  CheckRounds(job.context, *job.model.weights);
  CheckRounds(spec, job.model.weights->config);
  return Quantiser(job, plan, spec).Run();
}

DepthPlan WithTensorsOf(const DepthPlan& from, DepthPlan plan) {
  for (Stage& stage : plan.stages) {
    std::optional<BlockStage> changed;
    stage.Visit(
        [&](const BlockStage& block) {
          if (block.own == nullptr)
            changed = BlockStage{block.layer, block.halves, from.stages[from.StageOf(block.layer)].block().own};
        },
        [](const AdapterStage&) {});
    if (changed) stage = *changed;
  }
  if (!plan.output) plan.output = from.output;
  return plan;
}

}  // namespace shiftrt
