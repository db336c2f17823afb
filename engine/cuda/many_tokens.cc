// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/many_tokens.h"

#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/rowwise.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;

void ManyTokens::Embed() {
  pending_ = {};
  s_.Embed(s_.Hidden(CudaArray::kResidual).data);
}

void ManyTokens::Resume(const Rows& residual) {
  pending_ = {};
  const float* const from = s_.Here(residual);
  const MatrixView<float> h = s_.Hidden(CudaArray::kResidual);
  if (from != h.data)
    gpu::CopyOnDevice(s_.stream(), h.data, from, h.rows * h.cols * static_cast<int64_t>(sizeof(float)));
}

void ManyTokens::Attention(const BlockStage& block, int64_t slot) {
  const DeviceAttention& w = s_.AttentionOf(block);
  const KeysValues kv = s_.Place(slot);
  const Step& step = s_.step();
  const int64_t q_dim = s_.config().query_dim(), qkv_dim = q_dim + 2 * s_.config().kv_dim();
  const DeviceArray qkv = s_.Get(CudaArray::kQkv, step.count * qkv_dim, s_.dtype());
  const DeviceArray q = s_.Get(CudaArray::kQueries, step.count * q_dim, s_.dtype());
  const DeviceArray attended = s_.Get(CudaArray::kAttended, step.count * q_dim, s_.dtype());
  const DeviceArray x = Normed(w.norm, CudaArray::kNormed);
  if (s_.Parallel(block) && !s_.spec().shared_norm) Normed(s_.MlpOf(block).norm, s_.ParallelMlpInput());
  s_.products().MatMul(
      {.x = x, .w = {w.qkv.data(), s_.dtype()}, .y = qkv, .m = step.count, .n = qkv_dim, .k = s_.hidden()});
  s_.Rotate(block.layer, w, qkv, q, kv);
  JoinBranches(kv);
  if (s_.dtype() == DType::kFloat32) {
    s_.AttendSplit(block.layer, q, kv, static_cast<float*>(attended.data));
  } else {
    gpu::AttendPacked(s_.stream(), {.shape = s_.ShapeOf(block.layer),
                                    .q = q,
                                    .keys = kv.keys,
                                    .values = kv.values,
                                    .sequences = step.sequences,
                                    .sequence_count = step.sequence_count,
                                    .longest = step.longest,
                                    .tokens = step.count,
                                    .rows = kv.rows,
                                    .out = attended});
  }
  Add({attended, w.o.data(), q_dim, w.o_bias, w.update_norm}, CudaArray::kAttentionUpdate);
}

DeviceArray ManyTokens::Normed(const DeviceNorm& norm, CudaArray into) {
  const DeviceArray x = s_.Get(into, s_.step().count * s_.hidden(), s_.dtype());
  gpu::AddNorm(s_.stream(), s_.Hidden(CudaArray::kResidual), pending_, s_.NormOf(norm), x);
  pending_ = {};
  return x;
}

// The pending part of an update is added to the stream when the next norm reads it.
void ManyTokens::Add(const LastProduct& last, CudaArray apart) {
  const MatrixView<float> h = s_.Hidden(CudaArray::kResidual);
  const bool at_once = !s_.tapped() && s_.spec().PlainUpdates();
  float* const to = at_once ? h.data : s_.Hidden(apart).data;
  s_.products().MatMul({.x = last.x,
                        .w = {last.w, s_.dtype()},
                        .y = {to, DType::kFloat32},
                        .m = h.rows,
                        .n = s_.hidden(),
                        .k = last.inputs,
                        .accumulate = at_once});
  pending_ = {at_once ? nullptr : to, last.bias.data()};
  if (s_.spec().PlainUpdates()) return;
  s_.AddNormed(h, to, last.bias, last.norm);
  pending_ = {};
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void ManyTokens::JoinBranches(const KeysValues& kv) {
  if (s_.step().joined_count == 0) return;
  const int64_t width = s_.config().kv_dim(),
                behind = s_.step().count * width * static_cast<int64_t>(SizeOf(s_.dtype()));
  for (const DeviceArray& rows : {kv.keys, kv.values})
    gpu::GatherRows(s_.stream(), s_.step().joined_rows, {rows, s_.step().count, width},
                    {{static_cast<std::byte*>(rows.data) + behind, s_.dtype()}, s_.step().joined_count, width});
}

void ManyTokens::Mlp(const BlockStage& block) {
  const DeviceMlp& w = s_.MlpOf(block);
  const int64_t count = s_.step().count, inter = s_.config().intermediate;
  const DeviceArray activation = s_.Get(CudaArray::kActivation, count * inter, s_.dtype());
  if (s_.Parallel(block)) {
    Settled();
    Gate(w, s_.Get(s_.ParallelMlpInput(), count * s_.hidden(), s_.dtype()), activation);
  } else {
    Gate(w, Normed(w.norm, CudaArray::kNormed), activation);
  }
  Add({activation, w.down.data(), inter, w.down_bias, w.update_norm}, CudaArray::kMlpUpdate);
}

void ManyTokens::Gate(const DeviceMlp& w, ConstDeviceArray x, DeviceArray activation) {
  const int64_t count = s_.step().count, inter = s_.config().intermediate;
  const ConstDeviceArray weights{w.gate_up.data(), s_.dtype()};
  const bool silu = s_.spec().activation == Activation::kSilu;
  if (s_.gates_at_once()) {
    const auto multiply = silu ? gpu::MultiplySwiGlu : gpu::MultiplyGeGlu;
    return multiply(s_.stream(), {.x = x,
                                  .gate_up = weights,
                                  .bias = w.gate_up_bias.data(),
                                  .tokens = count,
                                  .hidden = s_.hidden(),
                                  .intermediate = inter,
                                  .out = activation,
                                  .multiprocessors = s_.cores()});
  }
  const float* const bias = w.gate_up_bias.data();
  const gpu::DeviceRows out(activation, count, inter);
  if (!s_.spec().gated) {
    s_.products().MatMul({.x = x, .w = weights, .y = activation, .m = count, .n = inter, .k = s_.hidden()});
    return gpu::GateRows(s_.stream(), s_.spec().activation, {.gate = {activation, count, inter}, .gate_bias = bias},
                         out);
  }
  const DeviceArray gate_up = s_.Get(CudaArray::kGateUp, count * 2 * inter, s_.dtype());
  s_.products().MatMul({.x = x, .w = weights, .y = gate_up, .m = count, .n = 2 * inter, .k = s_.hidden()});
  const DeviceArray up{static_cast<std::byte*>(gate_up.data) + inter * static_cast<int64_t>(SizeOf(s_.dtype())),
                       s_.dtype()};
  gpu::GateRows(s_.stream(), s_.spec().activation,
                {.gate = {gate_up, count, inter, 2 * inter},
                 .up = {up, count, inter, 2 * inter},
                 .gate_bias = bias,
                 .up_bias = bias != nullptr ? bias + inter : nullptr},
                out);
}

// Nothing taps what an adapter adds, so factors add it to the stream at once. A full map reads all of the stream.
void ManyTokens::Adapter(const AdapterStage& adapter) {
  const DeviceLra& lra = s_.AdapterOf(adapter);
  const MatrixView<float> h = Settled();
  // to (tokens, n) = (to +) from (tokens, k) times a weight (n, k), transposed; all in float32.
  const auto multiply = [&](float* from, const DeviceBuffer<float>& w, int64_t n, int64_t k, float* to) {
    s_.products().MatMul({.x = DeviceArray{from, DType::kFloat32},
                          .w = {w.data(), DType::kFloat32},
                          .y = {to, DType::kFloat32},
                          .m = h.rows,
                          .n = n,
                          .k = k,
                          .accumulate = to == h.data});
  };
  if (lra.rank > 0) {
    float* const inner = s_.Floats(CudaArray::kInner, h.rows * lra.rank);
    multiply(h.data, lra.p, lra.rank, s_.hidden(), inner);
    multiply(inner, lra.q, s_.hidden(), lra.rank, h.data);
    pending_ = {nullptr, lra.bias.data()};
  } else {
    float* const update = s_.Hidden(CudaArray::kAttentionUpdate).data;
    multiply(h.data, lra.a, s_.hidden(), s_.hidden(), update);
    pending_ = {update, lra.bias.data()};
  }
}

MatrixView<float> ManyTokens::Settled() {
  const MatrixView<float> h = s_.Hidden(CudaArray::kResidual);
  if (pending_.update != nullptr || pending_.bias != nullptr)
    gpu::AddRows(s_.stream(), {pending_.update, h.rows, h.cols}, h, pending_.bias);
  pending_ = {};
  return h;
}

Rows ManyTokens::Stream() { return s_.rows()->Of(Settled()); }

MatrixView<const float> ManyTokens::WithBias(MatrixView<const float> update, const DeviceBuffer<float>& bias) {
  if (bias.size() == 0 || !s_.spec().PlainUpdates()) return update;
  const MatrixView<float> biased = s_.Hidden(CudaArray::kDelta);
  gpu::CopyOnDevice(s_.stream(), biased.data, update.data,
                    update.rows * update.cols * static_cast<int64_t>(sizeof(float)));
  gpu::AddRows(s_.stream(), {}, biased, bias.data());
  return biased;
}

Rows ManyTokens::Update(const BlockStage& block, Halves halves) {
  const MatrixView<float> attention = s_.Hidden(CudaArray::kAttentionUpdate), mlp = s_.Hidden(CudaArray::kMlpUpdate);
  if (halves == Halves::kAttention) return s_.rows()->Of(WithBias(attention, s_.AttentionOf(block).o_bias));
  if (halves == Halves::kMlp) return s_.rows()->Of(WithBias(mlp, s_.MlpOf(block).down_bias));
  // The sum of both updates overwrites the attention's, which no later tap reads.
  gpu::AddRows(s_.stream(), mlp, attention);
  for (const DeviceBuffer<float>* bias : {&s_.AttentionOf(block).o_bias, &s_.MlpOf(block).down_bias})
    if (bias->size() > 0 && s_.spec().PlainUpdates()) gpu::AddRows(s_.stream(), {}, attention, bias->data());
  return s_.rows()->Of(attention);
}

Rows ManyTokens::Widened(CudaArray rows, int64_t width) {
  const int64_t count = s_.step().count;
  const DeviceArray from = s_.Get(rows, count * width, s_.dtype());
  auto* wide = static_cast<float*>(from.data);
  if (s_.dtype() != DType::kFloat32) {
    wide = s_.Floats(CudaArray::kWidened, count * width);
    gpu::CopyRows(s_.stream(), {from, count, width}, MatrixView<float>(wide, count, width));
  }
  return s_.rows()->Of({wide, count, width});
}

Rows ManyTokens::Heads() { return Widened(CudaArray::kAttended, s_.config().query_dim()); }

Rows ManyTokens::Activation() { return Widened(CudaArray::kActivation, s_.config().intermediate); }

void ManyTokens::Choose() { s_.Choose(Settled().row(s_.step().count - 1)); }

}  // namespace shiftrt
