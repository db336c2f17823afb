// SPDX-License-Identifier: Apache-2.0
#include "engine/projection.h"

#include "runtime/random.h"

namespace shiftrt {

namespace {

// The first columns of a scratch matrix, as a dense one.
DeviceMatrix<float> Part(const DeviceMatrix<float>& scratch, int64_t cols) {
  return scratch.Part(0, scratch.rows, cols);
}

Operand Of(const Parameter& parameter) { return parameter.value; }

}  // namespace

LoraScratch LoraScratch::Of(Arena& arena, const StagePass& pass, const TrainedStage& stage, int64_t tokens) {
  int64_t rank = 0, input = 0;
  for (const LoraParameters& lora : stage.parameters.loras) {
    if (lora.empty()) continue;
    rank = std::max(rank, lora.a.value.rows);
    input = std::max(input, lora.a.value.cols);
  }
  if (rank == 0) return {};
  LoraScratch scratch{arena.Get(tokens, rank), arena.Get(tokens, rank), {}};
  if (pass.lora.dropout > 0) scratch.dropped = arena.Get(tokens, input);
  return scratch;
}

size_t RowOf(TensorView BlockWeights::*member) {
  const std::span<const BlockTensor> rows = BlockTensors();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const BlockTensor& t) { return t.member == member; });
  return static_cast<size_t>(row - rows.begin());
}

Operand OperandOf(const StagePass& pass, const TrainedStage& stage, TensorView BlockWeights::*member) {
  const std::vector<Parameter>& tensors = stage.parameters.tensors;
  if (!tensors.empty()) {
    const Parameter& parameter = tensors[RowOf(member)];
    if (!parameter.value.empty()) return Of(parameter);
  }
  return TensorsOf(pass.weights, stage.stage.block()).*member;
}

DeviceMatrix<float> GradientOf(const TrainedStage& stage, TensorView BlockWeights::*member) {
  const std::vector<Parameter>& tensors = stage.parameters.tensors;
  return tensors.empty() ? DeviceMatrix<float>() : tensors[RowOf(member)].gradient;
}

ProjectionPass::ProjectionPass(const StagePass& pass, const TrainedStage& stage, TensorView BlockWeights::*w,
                               TensorView BlockWeights::*bias)
    : pass_(pass),
      w_(OperandOf(pass, stage, w)),
      bias_(OperandOf(pass, stage, bias)),
      dw_(GradientOf(stage, w)),
      dbias_(GradientOf(stage, bias)) {
  if (stage.parameters.loras.empty()) return;
  const size_t row = RowOf(w);
  lora_ = stage.parameters.loras[row];
  const LoraSettings& lora = pass.lora;
  dropout_ = {SplitMix64(SplitMix64(SplitMix64(lora.seed, lora.step), stage.index), row), lora.dropout};
}

bool ProjectionPass::Trained() const { return ReadsInput() || !dbias_.empty(); }
bool ProjectionPass::ReadsInput() const {
  return !dw_.empty() || !lora_.a.gradient.empty() || !lora_.b.gradient.empty();
}

DeviceMatrix<const float> ProjectionPass::LoraInput(DeviceMatrix<const float> x, const LoraScratch& scratch) const {
  if (!Drops()) return x;
  const DeviceMatrix<float> dropped = Part(scratch.dropped, x.cols);
  pass_.ops.ApplyDropout(dropout_, x, dropped);
  return dropped;
}

void ProjectionPass::Forward(DeviceMatrix<const float> x, const LoraScratch& scratch, DeviceMatrix<float> y) const {
  Ops& ops = pass_.ops;
  if (lora_.empty()) return ops.MatMul(x, w_, bias_, false, y);
  const DeviceMatrix<float> inner = Part(scratch.inner, lora_.a.value.rows);
  if (!Drops()) return ops.MatMulLowRank(x, w_, bias_, {Of(lora_.a), Of(lora_.b), pass_.lora.scale, inner}, y);
  ops.MatMul(x, w_, bias_, false, y);
  ops.MatMul(LoraInput(x, scratch), Of(lora_.a), {}, false, inner);
  ops.Scale(pass_.lora.scale, inner);
  ops.MatMul(inner, Of(lora_.b), {}, true, y);
}

void ProjectionPass::Backward(DeviceMatrix<const float> x, DeviceMatrix<const float> dy, const LoraScratch& scratch,
                              bool accumulate, DeviceMatrix<float> dx) const {
  Ops& ops = pass_.ops;
  const bool want_dx = !dx.empty();
  if (!dw_.empty()) ops.MatMulWeightGradient(dy, x, dw_);
  if (!dbias_.empty()) ops.BiasGradient(dy, dbias_);
  const bool joined = want_dx && !lora_.empty() && !Drops();
  if (want_dx && !joined) ops.MatMulInputGradient(dy, w_, accumulate, dx);
  if (lora_.empty()) return;

  const DeviceMatrix<float> inner = Part(scratch.inner, lora_.a.value.rows);
  const DeviceMatrix<float> dinner = Part(scratch.dinner, lora_.a.value.rows);
  const Operand a = Of(lora_.a), b = Of(lora_.b);
  const bool want_da = !lora_.a.gradient.empty(), want_db = !lora_.b.gradient.empty();
  const DeviceMatrix<const float> input = want_da || want_db ? LoraInput(x, scratch) : x;
  if (want_db) {
    ops.MatMul(input, a, {}, false, inner);
    ops.Scale(pass_.lora.scale, inner);
    ops.MatMulWeightGradient(dy, inner, lora_.b.gradient);
  }
  if (!want_da && !want_dx) return;
  if (joined) {
    ops.MatMulInputGradientLowRank(dy, w_, {a, b, pass_.lora.scale, dinner}, accumulate, dx);
  } else {
    ops.MatMulInputGradient(dy, b, false, dinner);
    ops.Scale(pass_.lora.scale, dinner);
  }
  if (want_da) ops.MatMulWeightGradient(dinner, input, lora_.a.gradient);
  if (!want_dx || joined) return;
  const DeviceMatrix<float> ddropped = Part(scratch.dropped, dx.cols);  // its input is not read any more
  ops.MatMulInputGradient(dinner, a, false, ddropped);
  ops.ApplyDropout(dropout_, ddropped, ddropped);
  ops.AddTo(ddropped, dx);
}

}  // namespace shiftrt
