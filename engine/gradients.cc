// SPDX-License-Identifier: Apache-2.0
#include "engine/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "engine/backend.h"
#include "engine/gradient_ops.h"
#include "engine/gradient_stages.h"
#include "runtime/check.h"
#include "runtime/elements.h"

namespace shiftrt {

namespace {

constexpr int64_t kHeadRows = 2048;  // whose loss is computed at once

bool HasGradient(const Parameter& parameter) { return parameter.gradient.data != nullptr; }

bool IsFinite(const TensorView& tensor) {
  if (tensor.empty()) return true;
  return WithElements(tensor, [&](const auto* values) {
    return std::all_of(values, values + tensor.elements(),
                       [](auto value) { return std::isfinite(static_cast<float>(value)); });
  });
}

// Rows whose token is predicted, and how much each of them counts.
struct Predicted {
  std::vector<int64_t> rows;
  std::vector<int32_t> targets;
  std::vector<float> weights;
};

Predicted PredictedRows(const Batch& batch, const TargetWeights& weights) {
  Check(weights.empty() || std::ssize(weights) == batch.size(), "weights of {} targets for a batch of {} tokens",
        weights.size(), batch.size());
  Predicted predicted;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    Check(batch.parents[s] < 0, "sequence {} of the batch continues another: gradients are of whole sequences", s);
    Check(weights.empty() || begin == end || weights[begin] == 0,
          "the first token of sequence {} has the weight {} as a target, but nothing predicts it: expected 0", s,
          weights.empty() ? 0 : weights[begin]);
    for (int64_t t = begin + 1; t < end; ++t) {
      const float weight = weights.empty() ? 1 : weights[t];
      Check(weight >= 0 && std::isfinite(weight), "the weight {} of target {} of the batch is not a number from 0 on",
            weight, t);
      if (weight == 0) continue;
      predicted.rows.push_back(t - 1);
      predicted.targets.push_back(batch.tokens[t]);
      predicted.weights.push_back(weight);
    }
  }
  return predicted;
}

// Memory of the device that only grows.
class Grown {
 public:
  float* Get(GradientOps& ops, int64_t count) {
    if (count > count_) {
      data_.reset();  // before the larger one is asked for
      count_ = 0;
      data_ = ops.Allocate(count);
      count_ = count;
    }
    return data_.get();
  }
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(float)); }

 private:
  std::shared_ptr<float> data_;
  int64_t count_ = 0;
};

}  // namespace

bool StageParameters::AnyGradient() const {
  const auto any = [](const auto& list, const auto& has) { return std::any_of(list.begin(), list.end(), has); };
  return any(tensors, HasGradient) ||
         any(loras, [](const LoraParameters& lora) { return HasGradient(lora.a) || HasGradient(lora.b); }) ||
         HasGradient(a) || HasGradient(p) || HasGradient(q) || HasGradient(b);
}

size_t TrainedParameters::LowestStage(size_t stage_count) const {
  const auto lowest =
      std::find_if(stages.begin(), stages.end(), [](const StageParameters& stage) { return stage.AnyGradient(); });
  return lowest == stages.end() ? stage_count : static_cast<size_t>(lowest - stages.begin());
}

struct GradientEngine::Impl {
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  OutputWeights output;  // the plan's
  std::unique_ptr<GradientOps> ops;
  TrainedParameters trained;
  Grown streams, scratch, activations;
  int64_t activation_bytes = 0;  // that `activations` may take
  int64_t kept_blocks = 0;

  const ModelConfig& config() const { return weights->config; }
  StagePass Pass(bool dropout) const { return {*ops, *weights, trained.lora, dropout}; }
  TrainedStage StageAt(size_t index) const {
    static const StageParameters kNothing;
    return {index, plan.stages[index], trained.stages.empty() ? kNothing : trained.stages[index]};
  }
  void Begin(const Batch& batch) const {
    CheckLengths(config(), batch);
    ops->Begin(batch);
  }
  void Forward(size_t stage, MatrixView<float> h, bool dropout, float* kept = nullptr);
  void Backward(size_t stage, const StreamGradient& stream, float* kept = nullptr);
  // Where each stage from `lowest` on keeps its activations; null: it does not.
  std::vector<float*> KeptActivations(size_t lowest, int64_t tokens);

  Operand FinalNorm() const {
    return trained.final_norm.value.data == nullptr ? Operand{output.final_norm}
                                                    : Operand{{}, trained.final_norm.value};
  }
  Operand OutputHead() const {
    return trained.head.value.data == nullptr ? Operand{output.head} : Operand{{}, trained.head.value};
  }
  LossSum Head(const Batch& batch, const Predicted& predicted, double scale, MatrixView<const float> stream,
               MatrixView<float> gradient, const LossKind& kind);
  LossSum MeasuredHead(const Predicted& predicted, MatrixView<const float> stream);
  bool Trains() const;
  // Throws Error where the model is at fault, and returns where what is trained is: the caller knows how.
  void ExplainNotFinite(const Batch& batch, double loss, bool dropout);
  std::optional<std::string> StoredNotFinite(size_t stage) const;
};

void GradientEngine::Impl::Forward(size_t stage, MatrixView<float> h, bool dropout, float* kept) {
  const StagePass pass = Pass(dropout);
  const TrainedStage trained_stage = StageAt(stage);
  const Direction direction = kept == nullptr ? Direction::kForward : Direction::kBackward;
  const int64_t floats = StageFloats(pass, trained_stage, h.rows, direction);
  RunForward(pass, trained_stage, {scratch.Get(*ops, floats), kept}, h);
}

void GradientEngine::Impl::Backward(size_t stage, const StreamGradient& stream, float* kept) {
  const StagePass pass = Pass(/*dropout=*/true);
  const TrainedStage trained_stage = StageAt(stage);
  const int64_t floats = StageFloats(pass, trained_stage, stream.input.rows, Direction::kBackward);
  RunBackward(pass, trained_stage, {scratch.Get(*ops, floats), kept}, stream);
}

std::vector<float*> GradientEngine::Impl::KeptActivations(size_t lowest, int64_t tokens) {
  const size_t stages = plan.stages.size();
  std::vector<int64_t> offsets(stages, -1);
  int64_t used = 0;
  for (size_t stage = stages; stage-- > lowest;) {
    const int64_t floats = KeptFloats(Pass(true), StageAt(stage), tokens);
    if (used + floats > activation_bytes / static_cast<int64_t>(sizeof(float))) break;
    if (floats == 0) continue;
    offsets[stage] = used;
    used += floats;
  }
  kept_blocks = std::count_if(offsets.begin(), offsets.end(), [](int64_t offset) { return offset >= 0; });
  std::vector<float*> kept(stages, nullptr);
  if (kept_blocks == 0) return kept;
  float* const memory = activations.Get(*ops, used);
  for (size_t stage = lowest; stage < stages; ++stage)
    if (offsets[stage] >= 0) kept[stage] = memory + offsets[stage];
  return kept;
}

// Rows in blocks, so that the memory does not grow with the batch.
LossSum GradientEngine::Impl::Head(const Batch& batch, const Predicted& predicted, double scale,
                                   MatrixView<const float> stream, MatrixView<float> gradient, const LossKind& kind) {
  const bool diverges = kind.divergence != 0;
  Check(!diverges || (kind.teacher != nullptr && kind.teacher->count() == batch.size() &&
                      kind.teacher->hidden() == config().hidden),
        "a divergence needs the teacher's stream of ({}, {})", batch.size(), config().hidden);
  std::shared_ptr<float> copy;
  const MatrixView<const float> teacher = diverges ? ops->Here(*kind.teacher, copy) : MatrixView<const float>();
  if (gradient.data != nullptr) ops->Zero(gradient);
  LossSum sum;
  const auto count = std::ssize(predicted.rows);
  for (int64_t first = 0; first < count; first += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, count - first), hidden = config().hidden;
    const auto part = [&](const auto& list) { return std::span(list).subspan(first, rows); };
    const auto lay_out = [&](Arena arena) {
      std::array<MatrixView<float>, 4> parts;
      for (int i = 0; i < (diverges ? 4 : 3); ++i) parts[i] = arena.Get(rows, hidden);
      return std::pair(parts, arena.peak());
    };
    const auto [gathered, normed, dx, taught] = lay_out(Arena(scratch.Get(*ops, lay_out(Arena()).second))).first;
    ops->Gather(part(predicted.rows), stream, gathered);
    ops->RmsNorm(gathered, FinalNorm(), normed);
    if (diverges) {
      ops->Gather(part(predicted.rows), teacher, taught);
      ops->RmsNorm(taught, {weights->final_norm}, taught);
    }
    std::vector<float> scales, losses(rows);
    for (const float weight : part(predicted.weights)) scales.push_back(static_cast<float>(scale * weight));
    ops->HeadLossGradient({OutputHead(), normed, part(predicted.targets), kind.cross_entropy, kind.divergence, taught},
                          scales, losses, dx, trained.head.gradient);
    for (int64_t i = 0; i < rows; ++i)
      sum += {static_cast<double>(part(predicted.weights)[i]) * losses[i], part(predicted.weights)[i]};
    if (gradient.data == nullptr && !HasGradient(trained.final_norm)) continue;
    ops->RmsNormGradient(gathered, FinalNorm(), dx, false, dx, trained.final_norm.gradient);
    if (gradient.data != nullptr) ops->Scatter(part(predicted.rows), dx, gradient);
  }
  return sum;
}

LossSum GradientEngine::Impl::MeasuredHead(const Predicted& predicted, MatrixView<const float> stream) {
  LossSum sum;
  const auto count = std::ssize(predicted.rows);
  for (int64_t first = 0; first < count; first += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, count - first);
    const MatrixView<float> x(scratch.Get(*ops, rows * config().hidden), rows, config().hidden);
    ops->Gather(std::span(predicted.rows).subspan(first, rows), stream, x);
    ops->RmsNorm(x, FinalNorm(), x);
    std::vector<float> log_probs(rows);
    ops->LogProbs({OutputHead(), x, std::span(predicted.targets).subspan(first, rows)}, log_probs);
    for (int64_t i = 0; i < rows; ++i) {
      const double weight = predicted.weights[first + i];
      sum += {-weight * log_probs[i], weight};
    }
  }
  return sum;
}

bool GradientEngine::Impl::Trains() const {
  return trained.LowestStage(plan.stages.size()) < plan.stages.size() || HasGradient(trained.head) ||
         HasGradient(trained.final_norm);
}

// Of a stage, a tensor that is used as stored.
std::optional<std::string> GradientEngine::Impl::StoredNotFinite(size_t index) const {
  const TrainedStage stage = StageAt(index);
  const auto bad = [&](const Parameter& parameter, const TensorView& stored) {
    return parameter.value.data == nullptr && !IsFinite(stored);
  };
  return stage.stage.Visit(
      [&](const BlockStage& block) -> std::optional<std::string> {
        std::optional<std::string> name;
        ForEachTensor(TensorsOf(*weights, block), block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
          const auto r = static_cast<size_t>(&row - BlockTensors().data());
          const StageParameters& given = stage.parameters;
          if (name) return;
          if (bad(given.tensors.empty() ? Parameter() : given.tensors[r], tensor)) name = row.name;
        });
        return name;
      },
      [&](const AdapterStage& adapter) -> std::optional<std::string> {
        const auto view = [](const Matrix<float>& matrix) {
          return matrix.empty() ? TensorView() : TensorView{matrix.data(), DType::kFloat32, {matrix.size()}};
        };
        const Lra& lra = *adapter.lra;
        const StageParameters& given = stage.parameters;
        const bool any = bad(given.a, view(lra.a)) || bad(given.p, view(lra.p)) || bad(given.q, view(lra.q)) ||
                         bad(given.b, view(lra.b));
        return any ? std::optional<std::string>("its matrices") : std::nullopt;
      });
}

// Runs the batch again and looks at the stream behind every stage.
void GradientEngine::Impl::ExplainNotFinite(const Batch& batch, double loss, bool dropout) {
  const std::string model = weights->directory.string();
  const MatrixView<float> h(streams.Get(*ops, batch.size() * config().hidden), batch.size(), config().hidden);
  const auto finite = [&] { return std::isfinite(ops->SumOfSquares({h.data, static_cast<size_t>(h.rows * h.cols)})); };
  ops->Embed(h);
  Check(finite(), "{}: the loss of a batch is {}: an embedding of one of its tokens is not finite", model, loss);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    Forward(stage, h, dropout);
    if (finite()) continue;
    const std::string name = plan.stages[stage].Visit(
        [](const BlockStage& block) { return fmt::format("block {}", block.layer); },
        [](const AdapterStage& adapter) { return fmt::format("the adapter of layers {}", Names(adapter.parts)); });
    if (const std::optional<std::string> tensor = StoredNotFinite(stage))
      Fail("{}: the loss of a batch is {}: of {}, {} contains NaN or infinity", model, loss, name, *tensor);
    Check(Trains(), "{}: the loss of a batch is {}: the stream overflows in {}, whose tensors are finite", model, loss,
          name);
    return;
  }
  Check(Trains(),
        "{}: the loss of a batch is {}: the stream is finite behind the last stage, so that the last norm or the head "
        "contains NaN or infinity, or the logits overflow",
        model, loss);
}

GradientEngine::GradientEngine(const Context& context, std::shared_ptr<const Weights> weights, DepthPlan plan)
    : impl_(std::make_unique<Impl>()) {
  CheckStages(*weights, plan.stages);
  impl_->ops = MakeGradientOps(context, weights);
  impl_->output = plan.Output(*weights);
  impl_->weights = std::move(weights);
  impl_->plan = std::move(plan);
}
GradientEngine::~GradientEngine() = default;
GradientEngine::GradientEngine(GradientEngine&&) noexcept = default;

const DepthPlan& GradientEngine::plan() const { return impl_->plan; }
GradientOps& GradientEngine::ops() { return *impl_->ops; }
std::shared_ptr<float> GradientEngine::Allocate(int64_t count) { return impl_->ops->Allocate(count); }
int64_t GradientEngine::PeakBytes() const {
  return impl_->streams.bytes() + impl_->scratch.bytes() + impl_->activations.bytes();
}
void GradientEngine::KeepActivations(int64_t bytes) { impl_->activation_bytes = bytes; }
int64_t GradientEngine::KeptBlocks() const { return impl_->kept_blocks; }

void GradientEngine::Set(TrainedParameters parameters) {
  const size_t stages = plan().stages.size();
  Check(parameters.stages.empty() || parameters.stages.size() == stages, "parameters of {} stages for a plan of {}",
        parameters.stages.size(), stages);
  const LoraSettings& lora = parameters.lora;
  Check(lora.dropout >= 0 && lora.dropout < 1, "a dropout of {} is not in [0, 1)", lora.dropout);
  impl_->trained = std::move(parameters);
  for (size_t i = 0; i < stages; ++i) CheckParameters(*impl_->weights, impl_->StageAt(i));
  const auto fits = [](const auto& view, int64_t rows, int64_t cols, const char* name) {
    Check(view.data == nullptr || (view.rows == rows && view.cols == cols && view.stride == cols),
          "a trained {} of ({}, {}) with rows {} apart, expected ({}, {})", name, view.rows, view.cols, view.stride,
          rows, cols);
  };
  const ModelConfig& config = impl_->config();
  const auto check = [&](const Parameter& parameter, int64_t rows, const char* name) {
    fits(parameter.value, rows, config.hidden, name);
    fits(parameter.gradient, rows, config.hidden, name);
  };
  check(impl_->trained.final_norm, 1, "last norm");
  check(impl_->trained.head, config.vocab, "head");
}

LossSum GradientEngine::Step(const Batch& batch, const TargetWeights& weights, double scale, const LossKind& kind) {
  Impl& impl = *impl_;
  const Predicted predicted = PredictedRows(batch, weights);
  const size_t stages = plan().stages.size(), lowest = impl.trained.LowestStage(stages);
  const int64_t tokens = batch.size(), size = tokens * impl.config().hidden;
  const size_t kept = stages - lowest + 1;  // the stream before each stage that is passed backwards, and the last
  const bool backwards = lowest < stages;
  float* const memory = impl.streams.Get(*impl.ops, static_cast<int64_t>(kept + (backwards ? 1 : 0)) * size);
  const auto stream = [&](size_t i) {
    return MatrixView<float>(memory + static_cast<int64_t>(i) * size, tokens, impl.config().hidden);
  };

  impl.Begin(batch);
  const std::vector<float*> activations = impl.KeptActivations(lowest, tokens);
  impl.ops->Embed(stream(0));
  for (size_t stage = 0; stage < stages; ++stage) {
    const size_t to = stage < lowest ? 0 : stage - lowest + 1;
    if (to > 0) impl.ops->Copy(stream(to - 1), stream(to));
    impl.Forward(stage, stream(to), /*dropout=*/true, activations[stage]);
  }
  const MatrixView<float> gradient = backwards ? stream(kept) : MatrixView<float>();
  const LossSum loss = impl.Head(batch, predicted, scale, stream(kept - 1), gradient, kind);
  if (!std::isfinite(loss.loss)) {
    impl.ExplainNotFinite(batch, loss.loss, /*dropout=*/true);
    return loss;
  }
  for (size_t stage = stages; stage-- > lowest;)
    impl.Backward(stage, {stream(stage - lowest), gradient, stage > lowest}, activations[stage]);
  return loss;
}

LossSum GradientEngine::Loss(const Batch& batch, const TargetWeights& weights) {
  Impl& impl = *impl_;
  const Predicted predicted = PredictedRows(batch, weights);
  const int64_t hidden = impl.config().hidden;
  const MatrixView<float> h(impl.streams.Get(*impl.ops, batch.size() * hidden), batch.size(), hidden);
  impl.Begin(batch);
  impl.ops->Embed(h);
  for (size_t stage = 0; stage < plan().stages.size(); ++stage) impl.Forward(stage, h, /*dropout=*/false);
  const LossSum loss = impl.MeasuredHead(predicted, h);
  if (!std::isfinite(loss.loss)) impl.ExplainNotFinite(batch, loss.loss, /*dropout=*/false);
  return loss;
}

void GradientEngine::Embed(const Batch& batch, MatrixView<float> h) {
  impl_->Begin(batch);
  impl_->ops->Embed(h);
}

void GradientEngine::Forward(size_t stage, const Batch& batch, MatrixView<float> h) {
  impl_->Begin(batch);
  impl_->Forward(stage, h, /*dropout=*/true);
}

void GradientEngine::Backward(size_t stage, const Batch& batch, MatrixView<const float> input,
                              MatrixView<float> gradient, bool stream_gradient) {
  impl_->Begin(batch);
  impl_->Backward(stage, {input, gradient, stream_gradient});
}

LossSum GradientEngine::Head(const Batch& batch, const TargetWeights& weights, double scale,
                             MatrixView<const float> stream, MatrixView<float> gradient, const LossKind& kind) {
  return impl_->Head(batch, PredictedRows(batch, weights), scale, stream, gradient, kind);
}

}  // namespace shiftrt
