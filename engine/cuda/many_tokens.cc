// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/many_tokens.h"

#include <utility>

#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;

void ManyTokens::Embed() {
  pending_ = {};
  s_.Embed(s_.Hidden(CudaArray::kResidual));
}

void ManyTokens::Resume(const Rows& residual) {
  pending_ = {};
  const float* const from = s_.Here(residual);
  const MatrixView<float> h = s_.Hidden(CudaArray::kResidual);
  if (from != h.data)
    gpu::CopyOnDevice(s_.stream(), h.data, from, h.rows * h.cols * static_cast<int64_t>(sizeof(float)));
}

DeviceArray ManyTokens::InputOf(const BlockStage& block, Halves half) {
  const bool second = half == Halves::kMlp && HasTwoInputs(block);
  return s_.Get(second ? CudaArray::kMlpNormed : CudaArray::kNormed, s_.step().count * s_.hidden(), s_.dtype());
}

// Adds to the stream what is pending.
void ManyTokens::NormInput(const BlockStage& block, Halves half) {
  gpu::AddNorm(s_.stream(), s_.Hidden(CudaArray::kResidual), std::exchange(pending_, {}),
               s_.NormOf(s_.HalfOf(block, half).norm), InputOf(block, half));
}

void ManyTokens::Attend(const BlockStage& block, int64_t slot) {
  const DeviceAttention& w = s_.AttentionOf(block);
  if (w.delta) return GatedDelta(*w.delta, InputOf(block, Halves::kAttention), slot);
  const KeysValues kv = s_.Place(slot);
  const int64_t count = s_.step().count, q_dim = s_.config().query_dim(), qkv_dim = s_.qkv_dim();
  // Single tokens attend with float32 queries, so that blocks share the keys of a token.
  const DType type = s_.step().one_each ? DType::kFloat32 : s_.dtype();
  const DeviceArray qkv = s_.Get(CudaArray::kQkv, count * qkv_dim, type);
  const DeviceArray q = s_.Get(CudaArray::kQueries, count * q_dim, type);
  s_.MatMul({.x = InputOf(block, Halves::kAttention), .y = qkv, .m = count, .n = qkv_dim, .k = s_.hidden()},
            w.qkv.rows);
  s_.Rotate(block.layer, w, qkv, q, kv);
  JoinBranches(kv);
  const DeviceArray attended = s_.Get(CudaArray::kAttended, count * q_dim, s_.dtype());
  s_.Attend({block.layer, q, kv.keys, kv.values, kv.rows, attended, nullptr, w.sinks.data()});
  s_.GateHeads(qkv, attended);
}

void ManyTokens::GatedDelta(const DeviceDelta& w, ConstDeviceArray x, int64_t slot) {
  const GatedDeltaShape& shape = s_.spec().delta;
  const int64_t count = s_.step().count, width = shape.channels() + shape.values(), gates = 2 * shape.value_heads;
  const DeviceArray qkvz = s_.Get(CudaArray::kQkv, count * width, s_.dtype());
  float* const of_gates = s_.Floats(CudaArray::kDeltaGates, count * gates);
  s_.MatMul({.x = x, .y = qkvz, .m = count, .n = width, .k = s_.hidden()}, w.qkvz.rows);
  s_.MatMul({.x = x, .y = {of_gates, DType::kFloat32}, .m = count, .n = gates, .k = s_.hidden()}, w.gates.rows);
  s_.GatedDelta(w, slot, qkvz, of_gates, s_.Get(CudaArray::kAttended, count * shape.values(), s_.dtype()));
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void ManyTokens::JoinBranches(const KeysValues& kv) {
  if (s_.step().joined_count == 0) return;
  const int64_t width = s_.config().kv_dim(),
                after = s_.step().count * width * static_cast<int64_t>(SizeOf(s_.dtype()));
  for (const DeviceArray& rows : {kv.keys, kv.values})
    gpu::GatherRows(s_.stream(), s_.step().joined_rows, {rows, s_.step().count, width},
                    {{static_cast<std::byte*>(rows.data) + after, s_.dtype()}, s_.step().joined_count, width});
}

void ManyTokens::Gate(const BlockStage& block) {
  const DeviceMlp& w = s_.MlpOf(block);
  const ConstDeviceArray x = InputOf(block, Halves::kMlp);
  if (w.mixture) return mixture_.Run(*w.mixture, x);
  const int64_t count = s_.step().count, inter = w.inputs;
  const DeviceArray activation = s_.Get(CudaArray::kActivation, count * inter, s_.dtype());
  if (s_.gates_at_once() && !w.gate_up.rows.quantised()) {
    return gpu::MultiplyGated(s_.stream(), s_.spec().activation,
                              {.x = x,
                               .gate_up = w.gate_up.rows.plain,
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
    s_.MatMul({.x = x, .y = activation, .m = count, .n = inter, .k = s_.hidden()}, w.gate_up.rows);
    return gpu::GateRows(s_.stream(), s_.spec().activation, {.gate = {activation, count, inter}, .gate_bias = bias},
                         out);
  }
  const DeviceArray gate_up = s_.Get(CudaArray::kGateUp, count * 2 * inter, s_.dtype());
  s_.MatMul({.x = x, .y = gate_up, .m = count, .n = 2 * inter, .k = s_.hidden()}, w.gate_up.rows);
  const DeviceArray up{static_cast<std::byte*>(gate_up.data) + inter * static_cast<int64_t>(SizeOf(s_.dtype())),
                       s_.dtype()};
  gpu::GateRows(s_.stream(), s_.spec().activation,
                {.gate = {gate_up, count, inter, 2 * inter},
                 .up = {up, count, inter, 2 * inter},
                 .gate_bias = bias,
                 .up_bias = bias != nullptr ? bias + inter : nullptr},
                out);
}

// The bias of the last product is pending, and so is the product where it is written apart.
void ManyTokens::Finish(const BlockStage& block, Halves half) {
  const DeviceHalf& w = s_.HalfOf(block, half);
  const bool mlp = half == Halves::kMlp, plain = s_.spec().PlainUpdates(), at_once = plain && !s_.tapped();
  inputs_ = w.inputs;
  const MatrixView<float> h = WithPending();  // in the MLP of a parallel block the attention's is still pending
  float* const to = at_once ? h.data : s_.Hidden(mlp ? CudaArray::kMlpUpdate : CudaArray::kAttentionUpdate).data;
  if (mlp && s_.MlpOf(block).mixture) {
    mixture_.Sum(at_once, {to, h.rows, h.cols});
  } else {
    s_.MatMul({.x = s_.Get(mlp ? CudaArray::kActivation : CudaArray::kAttended, h.rows * inputs_, s_.dtype()),
               .y = {to, DType::kFloat32},
               .m = h.rows,
               .n = s_.hidden(),
               .k = inputs_,
               .accumulate = at_once},
              w.last.rows);
  }
  if (!plain) return s_.AddNormed(h, to, w);
  pending_ = {at_once ? nullptr : to, w.last_bias.data()};
}

// Nothing taps what an adapter adds, so factors add it to the stream at once. A full map reads all of the stream.
void ManyTokens::Adapter(const AdapterStage& adapter) {
  const DeviceLra& lra = s_.AdapterOf(adapter);
  const MatrixView<float> h = WithPending();
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
  float* const x = s_.InputOf(lra, h);
  if (lra.rank > 0) {
    float* const inner = s_.Floats(CudaArray::kInner, h.rows * lra.rank);
    multiply(x, lra.p, lra.rank, s_.hidden(), inner);
    multiply(inner, lra.q, s_.hidden(), lra.rank, h.data);
    pending_ = {nullptr, lra.bias.data()};
  } else {
    float* const update = s_.Hidden(CudaArray::kAttentionUpdate).data;
    multiply(x, lra.a, s_.hidden(), s_.hidden(), update);
    pending_ = {update, lra.bias.data()};
  }
}

MatrixView<float> ManyTokens::WithPending() {
  const MatrixView<float> h = s_.Hidden(CudaArray::kResidual);
  if (pending_.update != nullptr || pending_.bias != nullptr)
    gpu::AddRows(s_.stream(), {pending_.update, h.rows, h.cols}, h, pending_.bias);
  pending_ = {};
  return h;
}

Rows ManyTokens::Stream() { return s_.rows()->Of(WithPending()); }

// The bias of a plain update is added to the stream apart, and so is not in the array that the next norm reads.
Rows ManyTokens::Update(const BlockStage& block, Halves halves) {
  const bool both = halves == Halves::kBoth, plain = s_.spec().PlainUpdates();
  MatrixView<float> update = s_.Hidden(halves == Halves::kMlp ? CudaArray::kMlpUpdate : CudaArray::kAttentionUpdate);
  // The sum of both updates overwrites the attention's, which no later tap reads.
  if (both) gpu::AddRows(s_.stream(), s_.Hidden(CudaArray::kMlpUpdate), update);
  for (const Halves half : {Halves::kAttention, Halves::kMlp}) {
    if (!both && half != halves) continue;
    const float* const bias = s_.HalfOf(block, half).last_bias.data();
    if (bias == nullptr || !plain) continue;
    if (!both) {
      const MatrixView<float> copy = s_.Hidden(CudaArray::kDelta);
      gpu::CopyOnDevice(s_.stream(), copy.data, update.data, copy.rows * copy.cols * int64_t{sizeof(float)});
      update = copy;
    }
    gpu::AddRows(s_.stream(), {}, update, bias);
  }
  return s_.rows()->Of(update);
}

Rows ManyTokens::Widened(CudaArray rows) {
  const int64_t count = s_.step().count, width = inputs_;
  const DeviceArray from = s_.Get(rows, count * width, s_.dtype());
  auto* wide = static_cast<float*>(from.data);
  if (s_.dtype() != DType::kFloat32) {
    wide = s_.Floats(CudaArray::kWidened, count * width);
    gpu::CopyRows(s_.stream(), {from, count, width}, MatrixView<float>(wide, count, width));
  }
  return s_.rows()->Of({wide, count, width});
}

Rows ManyTokens::Heads() { return Widened(CudaArray::kAttended); }

Rows ManyTokens::Activation() {
  Check(inputs_ > 0, "a mixture of experts has no one activation that could be tapped");
  return Widened(CudaArray::kActivation);
}

void ManyTokens::Choose() { s_.Choose(WithPending().row(s_.step().count - 1)); }

}  // namespace shiftrt
