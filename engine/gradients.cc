// SPDX-License-Identifier: Apache-2.0
#include "engine/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "engine/backend.h"
#include "engine/layer_loop.h"
#include "engine/ops_layers.h"
#include "runtime/check.h"
#include "runtime/elements.h"

namespace shiftrt {

namespace {

constexpr int64_t kHeadRows = 2048;  // rows of the head that are computed at once

bool HasGradient(const Parameter& parameter) { return !parameter.gradient.empty(); }

bool IsFinite(const TensorView& tensor) {
  bool finite = true;
  if (tensor.empty()) return finite;
  ForEachWidenedRow(tensor, [&](int64_t, const std::vector<float>& row) {
    finite = finite && std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); });
  });
  return finite;
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

}  // namespace

struct GradientEngine::Impl {
  Impl(const Context& context, const std::shared_ptr<const Weights>& weights, DepthPlan plan)
      : layers(MakeOps(context, weights), weights, /*tapped=*/false),
        plan(std::move(plan)),
        output(this->plan.Output(*weights)) {
    layers.Train(trained);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  OpsLayers layers;
  DepthPlan plan;
  OutputWeights output;  // the plan's
  TrainedParameters trained;
  Grown streams, activations;
  int64_t activation_bytes = 0;  // that `activations` may take
  int64_t kept_blocks = 0;

  Ops& ops() const { return layers.ops(); }
  const Weights& weights() const { return layers.weights(); }
  const ModelConfig& config() const { return weights().config; }

  // The stages of the plan from there on.
  LayerCall From(const Batch& batch, const PassStart& from) const {
    return {.batch = batch, .stages = std::span(plan.stages).subspan(from.stage), .residual = from.rows};
  }
  // Runs stages of the plan through the layer loop.
  void Run(const LayerCall& call, const OpsLayers::Pass& pass) {
    CheckLengths(config(), call.batch);
    Check(weights().adapters.empty(),
          "gradients need adapters as stages of the plan, and blocks have some of their own (Weights::adapters)");
    layers.Begin(call, pass);
    RunLayers(layers, TapSet(), call);
  }
  // One stage, in place.
  void Run(size_t stage, const Batch& batch, DeviceMatrix<float> h, bool dropout) {
    const Rows before = ops().AsRows(h);
    Run({.batch = batch, .stages = std::span(plan.stages).subspan(stage, 1), .residual = &before},
        {.stream = h, .first = stage, .dropout = dropout});
  }
  // So many streams of a batch, one below the other.
  DeviceMatrix<float> Streams(size_t count, int64_t tokens) {
    const int64_t rows = static_cast<int64_t>(count) * tokens;
    return streams.Get(ops(), rows * config().hidden).Part(0, rows, config().hidden);
  }
  // Chooses which stages from `lowest` on keep their activations, and gives them the memory.
  void KeepActivations(size_t lowest, int64_t tokens, ActivationStore& store);

  NormOperands FinalNorm() const {
    const auto take = [](const Parameter& parameter, const TensorView& stored) {
      return parameter.value.empty() ? Operand(stored) : Operand(parameter.value);
    };
    return {take(trained.final_norm, output.final_norm), take(trained.final_norm_bias, output.final_norm_bias)};
  }
  bool FinalNormTrained() const { return HasGradient(trained.final_norm) || HasGradient(trained.final_norm_bias); }
  // Multiplies the head's input by the scale of the logits, or its gradient.
  void ScaleForHead(DeviceMatrix<float> x) const {
    if (config().block.logit_scale != 1) ops().Scale(config().block.logit_scale, x);
  }
  Operand OutputHead() const { return trained.head.value.empty() ? Operand(output.head) : trained.head.value; }
  LossSum Head(const Batch& batch, const Predicted& predicted, double scale, DeviceMatrix<const float> stream,
               DeviceMatrix<float> gradient, const LossKind& kind, bool measure_only = false);
  LossSum MeasuredHead(const Predicted& predicted, DeviceMatrix<const float> stream);
  bool Trains() const;
  // Throws Error where the model is at fault, and returns where what is trained is: the caller knows how.
  void ExplainNotFinite(const Batch& batch, double loss, bool dropout);
  std::optional<std::string> StoredNotFinite(size_t stage) const;
};

void GradientEngine::Impl::KeepActivations(size_t lowest, int64_t tokens, ActivationStore& store) {
  const size_t stages = plan.stages.size();
  std::vector<int64_t> offsets(stages, -1), sizes(stages);
  int64_t used = 0;
  for (size_t stage = stages; stage-- > lowest;) {
    const int64_t floats = sizes[stage] = layers.KeptFloats(stage, plan.stages[stage], tokens);
    if (used + floats > activation_bytes / static_cast<int64_t>(sizeof(float))) break;
    if (floats == 0) continue;
    offsets[stage] = used;
    used += floats;
  }
  kept_blocks = std::count_if(offsets.begin(), offsets.end(), [](int64_t offset) { return offset >= 0; });
  if (kept_blocks == 0) return;
  const DeviceMatrix<float> memory = activations.Get(ops(), used);
  for (size_t stage = lowest; stage < stages; ++stage)
    if (offsets[stage] >= 0) store.stages[stage].activations = memory.Part(offsets[stage], 1, sizes[stage]);
}

// Rows in blocks, so that the memory does not grow with the batch.
LossSum GradientEngine::Impl::Head(const Batch& batch, const Predicted& predicted, double scale,
                                   DeviceMatrix<const float> stream, DeviceMatrix<float> gradient, const LossKind& kind,
                                   bool measure_only) {
  const bool diverges = kind.divergence != 0;
  Check(!diverges || (kind.teacher != nullptr && kind.teacher->count() == batch.size() &&
                      kind.teacher->hidden() == config().hidden),
        "a divergence needs the teacher's stream of ({}, {})", batch.size(), config().hidden);
  DeviceMemory copy;
  const DeviceMatrix<const float> teacher = diverges ? ops().Here(*kind.teacher, copy) : DeviceMatrix<const float>();
  if (!gradient.empty()) ops().Zero(gradient);
  LossSum sum;
  const auto count = std::ssize(predicted.rows);
  for (int64_t first = 0; first < count; first += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, count - first), hidden = config().hidden;
    const auto part = [&](const auto& list) { return std::span(list).subspan(first, rows); };
    const auto lay_out = [&](Arena arena) {
      std::array<DeviceMatrix<float>, 4> parts;
      for (int i = 0; i < (diverges ? 4 : 3); ++i) parts[i] = arena.Get(rows, hidden);
      return std::pair(parts, arena.peak());
    };
    const auto [gathered, normed, dx, taught] = lay_out(Arena(layers.Scratch(lay_out(Arena()).second))).first;
    ops().Gather(part(predicted.rows), stream, gathered);
    ops().Norm(gathered, FinalNorm(), normed);
    ScaleForHead(normed);
    if (diverges) {
      ops().Gather(part(predicted.rows), teacher, taught);
      ops().Norm(taught, {weights().final_norm, weights().final_norm_bias}, taught);
      ScaleForHead(taught);
    }
    std::vector<float> scales, losses(rows);
    for (const float weight : part(predicted.weights)) scales.push_back(static_cast<float>(scale * weight));
    const bool stops = gradient.empty() && !FinalNormTrained() && !HasGradient(trained.head);
    const HeadRows head{OutputHead(), normed, part(predicted.targets), kind.cross_entropy, kind.divergence, taught};
    if (measure_only || stops) {
      ops().HeadLossGradient(head, scales, losses, {}, {});
    } else {
      ops().HeadLossGradient(head, scales, losses, dx, trained.head.gradient);
    }
    for (int64_t i = 0; i < rows; ++i)
      sum += {static_cast<double>(part(predicted.weights)[i]) * losses[i], part(predicted.weights)[i]};
    if (measure_only || (gradient.empty() && !FinalNormTrained())) continue;
    ScaleForHead(dx);
    ops().NormGradient(gathered, FinalNorm(), dx, false, dx,
                       {trained.final_norm.gradient, trained.final_norm_bias.gradient});
    if (!gradient.empty()) ops().Scatter(part(predicted.rows), dx, gradient);
  }
  return sum;
}

LossSum GradientEngine::Impl::MeasuredHead(const Predicted& predicted, DeviceMatrix<const float> stream) {
  LossSum sum;
  const auto count = std::ssize(predicted.rows);
  for (int64_t first = 0; first < count; first += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, count - first);
    const DeviceMatrix<float> x = layers.Scratch(rows * config().hidden).Part(0, rows, config().hidden);
    ops().Gather(std::span(predicted.rows).subspan(first, rows), stream, x);
    ops().Norm(x, FinalNorm(), x);
    ScaleForHead(x);
    std::vector<float> log_probs(rows);
    ops().LogProbs({OutputHead(), x, std::span(predicted.targets).subspan(first, rows)}, log_probs);
    for (int64_t i = 0; i < rows; ++i) {
      const double weight = predicted.weights[first + i];
      sum += {-weight * log_probs[i], weight};
    }
  }
  return sum;
}

bool GradientEngine::Impl::Trains() const {
  return trained.LowestStage(plan.stages.size()) < plan.stages.size() || HasGradient(trained.head) ||
         FinalNormTrained();
}

// The name of a tensor of the stage that is not finite and is used as stored.
std::optional<std::string> GradientEngine::Impl::StoredNotFinite(size_t index) const {
  static const StageParameters kNothing;
  const StageParameters& given = trained.stages.empty() ? kNothing : trained.stages[index];
  const auto bad = [&](const Parameter& parameter, const TensorView& stored) {
    return parameter.value.empty() && !IsFinite(stored);
  };
  return plan.stages[index].Visit(
      [&](const BlockStage& block) -> std::optional<std::string> {
        std::optional<std::string> name;
        ForEachTensor(TensorsOf(weights(), block), block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
          if (name) return;
          const bool given_too = row.expert < 0 && !given.tensors.empty();
          if (bad(given_too ? given.tensors[&row - BlockTensors().data()] : Parameter(), tensor)) name = row.name;
        });
        return name;
      },
      [&](const AdapterStage& adapter) -> std::optional<std::string> {
        const auto view = [](const Matrix<float>& matrix) {
          return matrix.empty() ? TensorView() : TensorView{matrix.data(), DType::kFloat32, {matrix.size()}};
        };
        const Lra& lra = *adapter.lra;
        const bool any = bad(given.a, view(lra.a)) || bad(given.p, view(lra.p)) || bad(given.q, view(lra.q)) ||
                         bad(given.b, view(lra.b));
        return any ? std::optional<std::string>("its matrices") : std::nullopt;
      });
}

// Runs the batch again and looks at the stream after every stage.
void GradientEngine::Impl::ExplainNotFinite(const Batch& batch, double loss, bool dropout) {
  const std::string model = weights().directory.string();
  const DeviceMatrix<float> h = Streams(1, batch.size());
  const auto finite = [&] { return std::isfinite(ops().SumOfSquares(h)); };
  Run({.batch = batch}, {.stream = h});
  Check(finite(), "{}: the loss of a batch is {}: an embedding of one of its tokens is not finite", model, loss);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    Run(stage, batch, h, dropout);
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
        "{}: the loss of a batch is {}: the stream is finite after the last stage, so that the last norm or the head "
        "contains NaN or infinity, or the logits overflow",
        model, loss);
}

void CheckGradientType(const Context& context, const Weights& weights) {
  Check(context.device != Device::kCuda || weights.embedding.dtype != DType::kFloat16,
        "gradients of a float16 model on the GPU would lose what is below 2^-24: choose bfloat16 or float32 with "
        "--dtype, or --device cpu");
}

GradientEngine::GradientEngine(const Context& context, const std::shared_ptr<const Weights>& weights, DepthPlan plan) {
  CheckDeviceTakes(context, *weights);
  CheckGradientType(context, *weights);
  CheckStages(*weights, plan.stages);
  impl_ = std::make_unique<Impl>(context, weights, std::move(plan));
}
GradientEngine::~GradientEngine() = default;

const DepthPlan& GradientEngine::plan() const { return impl_->plan; }
Ops& GradientEngine::ops() { return impl_->ops(); }
DeviceMemory GradientEngine::Allocate(int64_t count) { return impl_->ops().Allocate(count); }
int64_t GradientEngine::PeakBytes() const {
  return impl_->streams.bytes() + impl_->layers.scratch_bytes() + impl_->activations.bytes();
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
  for (size_t i = 0; i < impl_->trained.stages.size(); ++i)
    CheckParameters(impl_->weights(), i, plan().stages[i], impl_->trained.stages[i]);
  const auto fits = [](const auto& view, int64_t rows, int64_t cols, const char* name) {
    Check(view.empty() || (view.rows == rows && view.cols == cols && view.stride == cols),
          "a trained {} of ({}, {}) with rows {} apart, expected ({}, {})", name, view.rows, view.cols, view.stride,
          rows, cols);
  };
  const ModelConfig& config = impl_->config();
  const auto check = [&](const Parameter& parameter, int64_t rows, const char* name) {
    fits(parameter.value, rows, config.hidden, name);
    fits(parameter.gradient, rows, config.hidden, name);
  };
  check(impl_->trained.final_norm, 1, "last norm");
  Check(impl_->trained.final_norm_bias.value.empty() || config.block.norm_bias,
        "a trained bias of the last norm, which this model does not have");
  check(impl_->trained.final_norm_bias, 1, "bias of the last norm");
  check(impl_->trained.head, config.vocab, "head");
}

LossSum GradientEngine::Step(const Batch& batch, const TargetWeights& weights, double scale, const LossKind& kind,
                             const PassStart& from) {
  Impl& impl = *impl_;
  const Predicted predicted = PredictedRows(batch, weights);
  const size_t stages = plan().stages.size();
  const size_t lowest = impl.trained.LowestStage(stages);
  Check(from.stage <= lowest && (from.rows != nullptr || from.stage == 0),
        "a pass begins before stage {}, but stage {} has a gradient", from.stage, lowest);
  const int64_t tokens = batch.size();
  const size_t kept = stages - lowest + 1;  // the stream before each stage that is passed backwards, and the last
  const bool backwards = lowest < stages;
  const DeviceMatrix<float> streams = impl.Streams(kept + (backwards ? 1 : 0), tokens);
  const auto stream = [&](size_t i) { return streams.Rows(static_cast<int64_t>(i) * tokens, tokens); };

  ActivationStore store;
  for (size_t stage = 0; stage < stages; ++stage)
    store.stages.push_back({stream(stage < lowest ? 0 : stage - lowest + 1)});
  impl.KeepActivations(lowest, tokens, store);
  impl.Run(impl.From(batch, from), {.stream = stream(0), .first = from.stage, .dropout = true, .store = &store});
  const DeviceMatrix<float> gradient = backwards ? stream(kept) : DeviceMatrix<float>();
  const LossSum loss = impl.Head(batch, predicted, scale, stream(kept - 1), gradient, kind);
  if (!std::isfinite(loss.loss)) {
    impl.ExplainNotFinite(batch, loss.loss, /*dropout=*/true);
    return loss;
  }
  for (size_t stage = stages; stage-- > lowest;)
    impl.layers.Backward(stage, plan().stages[stage], {stream(stage - lowest), gradient, stage > lowest},
                         store.stages[stage].activations);
  return loss;
}

LossSum GradientEngine::Loss(const Batch& batch, const TargetWeights& weights, const LossKind& kind,
                             const PassStart& from) {
  Impl& impl = *impl_;
  const Predicted predicted = PredictedRows(batch, weights);
  const DeviceMatrix<float> h = impl.Streams(1, batch.size());
  impl.Run(impl.From(batch, from), {.stream = h, .first = from.stage});
  const LossSum loss = kind.divergence == 0 ? impl.MeasuredHead(predicted, h)
                                            : impl.Head(batch, predicted, 0, h, {}, kind, /*measure_only=*/true);
  if (!std::isfinite(loss.loss)) impl.ExplainNotFinite(batch, loss.loss, /*dropout=*/false);
  return loss;
}

void GradientEngine::Forward(size_t stage, const Batch& batch, DeviceMatrix<float> h) {
  impl_->Run(stage, batch, h, /*dropout=*/true);
}

void GradientEngine::Backward(size_t stage, const Batch& batch, DeviceMatrix<const float> input,
                              DeviceMatrix<float> gradient, bool stream_gradient) {
  CheckLengths(impl_->config(), batch);
  impl_->layers.Begin({.batch = batch}, {.stream = gradient});
  impl_->layers.Backward(stage, plan().stages[stage], {input, gradient, stream_gradient}, {});
}

LossSum GradientEngine::Head(const Batch& batch, const TargetWeights& weights, double scale,
                             DeviceMatrix<const float> stream, DeviceMatrix<float> gradient, const LossKind& kind) {
  return impl_->Head(batch, PredictedRows(batch, weights), scale, stream, gradient, kind);
}

}  // namespace shiftrt
