// SPDX-License-Identifier: Apache-2.0
#include "shift/quantise/quantise.h"

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/ops.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/linalg/large.h"
#include "shift/quantise/mixture.h"
#include "shift/quantise/round_matrix.h"
#include "shift/sums/streams.h"

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
        ops_(MakeCpuOps(job.context, weights_)),
        decoder_(job.context, weights_, DepthPlan::Original(config_.layers)) {
    report_.mixture = mixture_.name;
  }

  QuantisedPlan Run() {
    report_.bytes_before = FileBytes(plan_);
    CountWork();
    Start();
    const linalg::ReportsSolves reports(job_.progress);
    for (const Stage& stage : plan_.stages)
      stage.Visit([&](const BlockStage& block) { Block(block); },
                  [&](const AdapterStage&) {
                    Advance(stage);
                    done_.stages.push_back(stage);
                  });
    done_.output = Output();
    job_.progress.End();
    report_.bytes_after = FileBytes(done_);
    report_.tokens = tokens_;
    if (size_ > 0) report_.error = error_ / size_;
    return {std::move(done_), std::move(report_)};
  }

 private:
  bool reads_text() const { return spec_.rounding != Rounding::kNearest; }

  // The bytes of a file with the plan's weights, its adapters in float32.
  int64_t FileBytes(const DepthPlan& plan) const {
    const OutputWeights output = plan.Output(*weights_);
    int64_t bytes = output.table.empty() ? weights_->embedding.bytes() : output.table.bytes();
    if (!plan.TiedHead(*weights_)) bytes += output.head.bytes();
    for (const BlockStage* block : plan.Blocks())
      ForEachTensor(TensorsOf(*weights_, *block), block->halves,
                    [&](const BlockTensor&, const TensorView& tensor) { bytes += tensor.bytes(); });
    for (const AdapterStage* adapter : plan.Adapters())
      bytes += adapter->lra->parameters() * static_cast<int64_t>(sizeof(float));
    return bytes;
  }

  // The number of weights is the measure of the work.
  void CountWork() {
    int64_t weights = 0;
    for (const BlockStage* block : plan_.Blocks())
      ForEachTensor(TensorsOf(*weights_, *block), block->halves, [&](const BlockTensor& row, const TensorView& tensor) {
        if (row.kind == BlockTensor::Kind::kMatrix) weights += tensor.elements();
      });
    job_.progress.Begin("rounding weights (millions)", (weights + weights_->head.elements()) / kMillion);
  }

  void Start() {
    if (!reads_text()) return;
    Check(!job_.calibration.fit.empty(), "there is no calibration text, which the rounding reads");
    for (const Batch& batch : job_.calibration.fit) {
      if (tokens_ >= kRoundingTokens) break;
      batches_.push_back(&batch);
      tokens_ += batch.size();
      streams_.emplace_back().Set(Embedded(batch));
    }
  }
  Rows Embedded(const Batch& batch) {
    embedded_ = ops_->Allocate(batch.size() * config_.hidden);
    const DeviceMatrix<float> h = embedded_.matrix(batch.size(), config_.hidden);
    ops_->Begin(LayerCall{.batch = batch});
    ops_->Embed(h);
    return ops_->AsRows(h);
  }

  // Takes the streams through a stage.
  void Advance(const Stage& stage) {
    for (size_t b = 0; b < streams_.size(); ++b) {
      streams_[b].Set(decoder_.Resume(*batches_[b], streams_[b].rows(), {&stage, 1}));
      job_.progress.Advance(0);  // this may interrupt the work
    }
  }

  // The sums of what the matrices of some halves read.
  struct Inputs {
    std::optional<InputGram> attention, heads, mlp, activation;

    std::optional<InputGram>& Of(const BlockTensor& row) {
      if (row.input == Axis::kQueries) return heads;
      if (row.input == Axis::kIntermediate) return activation;
      return row.half == Halves::kAttention ? attention : mlp;
    }
  };

  // The input of the first matrices of a half.
  Rows NormOf(const Rows& stream, const BlockWeights& block, Halves half) {
    const bool attention = half == Halves::kAttention, shared = config_.block.shared_norm;
    const TensorView& weight = shared ? block.shared_norm : attention ? block.input_norm : block.post_norm;
    const TensorView& bias = shared ? block.shared_norm_bias : attention ? block.input_norm_bias : block.post_norm_bias;
    return NormOf(stream, {weight, bias});
  }
  Rows NormOf(const Rows& stream, const NormOperands& norm) {
    if (normed_.count() < stream.count() * config_.hidden) normed_ = ops_->Allocate(stream.count() * config_.hidden);
    const DeviceMatrix<float> to = normed_.matrix(stream.count(), config_.hidden);
    ops_->Norm(stream.host(), norm, to);
    return ops_->AsRows(to);
  }

  // Runs the halves of `stage` from the streams, which stay where they are, and adds up what its matrices read. An
  // error that is added to the stream is divided by the size of the stream in the next norm. So the inputs of the last
  // projections are, too: without that, the first token of a text, whose stream is a thousand times larger in many
  // models, would decide the sums.
  Inputs Measure(const BlockStage& stage) {
    Inputs inputs;
    KeptRows heads, activation;
    std::vector<Tap> taps;
    const auto keep = [&](TapPoint point, KeptRows& kept) {
      taps.push_back({stage.layer, point, [&kept](const Rows& rows, const Batch&) { kept.Set(rows); }});
    };
    if (RunsAttention(stage.halves)) {
      inputs.attention.emplace(config_.hidden);
      inputs.heads.emplace(config_.query_dim());
      keep(TapPoint::kHeads, heads);
    }
    if (RunsMlp(stage.halves)) {
      inputs.mlp.emplace(config_.hidden);
      inputs.activation.emplace(config_.intermediate);
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
    const bool together = config_.block.parallel && block.halves == Halves::kBoth;
    const auto own = std::make_shared<OwnBlock>(*weights_, block);
    bool changed = false;
    std::vector<Halves> parts;
    if (together) {
      parts = {Halves::kBoth};
    } else {
      if (RunsAttention(block.halves)) parts.push_back(Halves::kAttention);
      if (RunsMlp(block.halves)) parts.push_back(Halves::kMlp);
    }
    for (const Halves part : parts) {
      changed |= RoundPart({block.layer, part, OwnBlock::Share(own)}, *own);
      Advance(BlockStage{block.layer, part, OwnBlock::Share(own)});
    }
    ++index_;
    done_.stages.emplace_back(changed ? BlockStage{block.layer, block.halves, OwnBlock::Share(own)} : block);
  }

  // Rounds the matrices of the halves of `stage`, whose tensors are those of `own`.
  bool RoundPart(const BlockStage& stage, OwnBlock& own) {
    struct Wanted {
      const BlockTensor* row;
      BlockType type;
    };
    std::vector<Wanted> wanted;
    ForEachTensor(own.weights(), stage.halves, [&](const BlockTensor& row, const TensorView& tensor) {
      if (row.kind != BlockTensor::Kind::kMatrix) return;
      const BlockType type = TypeIn(mixture_, row, index_, plan_.blocks(), config_);
      if (ToBeRounded(tensor, type)) {
        wanted.push_back({&row, type});
      } else {
        job_.progress.Advance(Millions(tensor));
      }
    });
    if (wanted.empty()) return false;
    Inputs inputs;
    if (reads_text()) inputs = Measure(stage);
    std::map<const void*, Matrix<float>> roots;  // by the Gram matrix that they are of
    for (const auto& [row, type] : wanted) {
      std::optional<InputGram>& gram = inputs.Of(*row);
      Matrix<float>& root = roots[&gram];
      if (gram && root.empty()) root = gram->TakeRoot(job_.context);
      const TensorView tensor = own.weights().*row->member;
      const RoundedMatrix rounded = Round(row->name, tensor, type, root);
      own.Replace(row->member, rounded.tensor, rounded.storage);
    }
    return true;
  }

  static bool ToBeRounded(const TensorView& tensor, BlockType type) {
    return !PlainType(type) && tensor.dtype != DTypeOfBlocks(type);
  }

  // Without a root, nothing was measured, and all inputs count alike.
  RoundedMatrix Round(const char* name, const TensorView& tensor, BlockType type, const Matrix<float>& root) {
    RoundedMatrix rounded = RoundMatrix(job_.context, name, tensor, type, root.view(), spec_.rounding);
    error_ += rounded.error;
    size_ += rounded.size;
    ++report_.matrices;
    job_.progress.Advance(Millions(tensor));
    return rounded;
  }

  // The head reads the norm of the last streams.
  std::shared_ptr<const OutputWeights> Output() {
    const auto own = std::make_shared<OwnOutput>(*weights_, plan_);
    const OutputWeights& output = own->weights();
    const TensorView head = output.head;
    const BlockType type = HeadTypeIn(mixture_, config_);
    bool changed = false;
    if (ToBeRounded(head, type)) {
      Matrix<float> root;
      if (reads_text()) {
        InputGram gram(config_.hidden);
        for (const KeptRows& stream : streams_)
          gram.Add(job_.context, NormOf(stream.rows(), {output.final_norm, output.final_norm_bias}).host());
        root = gram.TakeRoot(job_.context);
      }
      const bool tied = plan_.TiedHead(*weights_);
      const RoundedMatrix rounded = Round("the head", head, type, root);
      own->Replace(&OutputWeights::head, rounded.tensor, rounded.storage);
      if (tied) own->Replace(&OutputWeights::table, rounded.tensor, rounded.storage);
      changed = true;
    }
    if (const BlockType table = TableTypeIn(mixture_, config_);
        output.table.empty() && !weights_->config.tied_head && ToBeRounded(weights_->embedding, table)) {
      const RoundedMatrix rounded =
          RoundMatrix(job_.context, "the embedding table", weights_->embedding, table, {}, Rounding::kNearest);
      own->Replace(&OutputWeights::table, rounded.tensor, rounded.storage);
      changed = true;
    }
    return changed ? OwnOutput::Share(own) : plan_.output;
  }

  static constexpr int64_t kMillion = 1'000'000;
  // Rounded so that the sum over all matrices is the total.
  int64_t Millions(const TensorView& tensor) {
    const int64_t before = counted_ / kMillion;
    counted_ += tensor.elements();
    return counted_ / kMillion - before;
  }

  const ShiftJob& job_;
  const std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  const DepthPlan& plan_;
  const QuantiseSpec& spec_;
  const Mixture& mixture_;
  const std::unique_ptr<Ops> ops_;
  Decoder decoder_;
  DeviceMemory embedded_, normed_;
  std::vector<const Batch*> batches_;
  std::vector<KeptRows> streams_;
  int64_t tokens_ = 0;               // the tokens of the text
  int64_t index_ = 0, counted_ = 0;  // blocks and weights so far
  double error_ = 0, size_ = 0;
  DepthPlan done_;
  QuantiseReport report_;
};

}  // namespace

QuantisedPlan Quantise(const ShiftJob& job, const DepthPlan& plan, const QuantiseSpec& spec) {
  if (job.model.weights->split()) FailUsage(Field("quantize"), "it needs the whole model in each process");
  if (job.context.device == Device::kCuda)
    FailUsage(Field("quantize"), "a GPU's products read no quantised matrices: round on the CPU (--device cpu)");
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
