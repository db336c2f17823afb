// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/one_token.h"

#include <utility>

#include "kernels/cuda/lra.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;

void OneToken::Begin() {
  h_ = s_.Floats(CudaArray::kResidual, s_.hidden());
  spare_ = s_.Floats(CudaArray::kAttentionUpdate, s_.hidden());
}

void OneToken::Embed() {
  Begin();
  s_.Embed({h_, 1, s_.hidden()});
}

void OneToken::Resume(const Rows&) {
  Begin();
  if (from_ != h_) gpu::CopyOnDevice(s_.stream(), h_, from_, s_.hidden() * static_cast<int64_t>(sizeof(float)));
}

// Several products read the inputs of a parallel block's halves, and of a mixture, so their norms are launches of their
// own.
void OneToken::NormInput(const BlockStage& block, Halves half) {
  const bool mlp = half == Halves::kMlp, apart = IsParallel(block) || (mlp && s_.MlpOf(block).mixture);
  of_mlp_ =
      s_.OfNormed(h_, s_.NormOf(s_.HalfOf(block, half).norm), apart, mlp ? CudaArray::kMlpNormed : CudaArray::kNormed);
  of_mlp_.cols = s_.hidden();
  if (!mlp) of_attention_ = of_mlp_;  // and of the MLP, if it shares the input
}

void OneToken::Attend(const BlockStage& block, int64_t slot) {
  const DeviceAttention& w = s_.AttentionOf(block);
  if (w.delta) return GatedDelta(*w.delta, slot);
  const KeysValues kv = s_.Place(slot);
  const int64_t q_dim = s_.config().query_dim(), qkv_dim = s_.qkv_dim();
  const DeviceArray q = s_.Get(CudaArray::kQueries, q_dim, DType::kFloat32);
  DeviceArray qkv;
  gpu::MatVecProblem product = of_attention_;
  product.w = w.qkv.rows;
  product.rows = qkv_dim;
  if (w.q_norm.size() == 0 && !s_.spec().attention_gate) {
    const gpu::AttentionShape shape = s_.ShapeOf(block.layer);
    product.bias = w.qkv_bias.data();
    gpu::MatVecRotate(s_.stream(), product,
                      {.table = s_.rope(block.layer),
                       .position = s_.step().rotations,
                       .cache_row = s_.step().cache_rows,
                       .heads = shape.heads,
                       .kv_heads = shape.kv_heads,
                       .head_dim = shape.head_dim,
                       .q = static_cast<float*>(q.data),
                       .keys = kv.keys,
                       .values = kv.values},
                      s_.cores());
  } else {  // the norm of a head needs all of its rows before RoPE, and its gate is used later
    qkv = s_.Get(CudaArray::kQkv, qkv_dim, DType::kFloat32);
    product.y = static_cast<float*>(qkv.data);
    gpu::MatVec(s_.stream(), product, s_.cores());
    s_.Rotate(block.layer, w, qkv, q, kv);
  }
  const DeviceArray attended = s_.Get(CudaArray::kAttended, q_dim, DType::kFloat32);
  s_.Attend({block.layer, q, kv.keys, kv.values, kv.rows, attended, nullptr, w.sinks.data()});
  s_.GateHeads(qkv, attended);
}

void OneToken::GatedDelta(const DeviceDelta& w, int64_t slot) {
  const GatedDeltaShape& shape = s_.spec().delta;
  const auto multiply = [&](const DeviceWeight& weight, int64_t rows, CudaArray into) {
    gpu::MatVecProblem product = of_attention_;
    product.w = weight.rows;
    product.rows = rows;
    product.y = s_.Floats(into, rows);
    gpu::MatVec(s_.stream(), product, s_.cores());
    return product.y;
  };
  const DeviceArray qkvz{multiply(w.qkvz, shape.channels() + shape.values(), CudaArray::kQkv), DType::kFloat32};
  const float* const gates = multiply(w.gates, 2 * shape.value_heads, CudaArray::kDeltaGates);
  s_.GatedDelta(w, slot, qkvz, gates, s_.Get(CudaArray::kAttended, shape.values(), DType::kFloat32));
}

void OneToken::Gate(const BlockStage& block) {
  const DeviceMlp& w = s_.MlpOf(block);
  if (w.mixture) return mixture_.Run(*w.mixture, {of_mlp_.x, DType::kFloat32});
  const int64_t inter = w.inputs;
  gpu::MatVecProblem product = of_mlp_;
  product.w = w.gate_up.rows;
  product.rows = s_.spec().gated ? 2 * inter : inter;
  product.bias = w.gate_up_bias.data();
  product.y = s_.Floats(CudaArray::kActivation, inter);
  if (s_.spec().gated) return gpu::MatVecGated(s_.stream(), s_.spec().activation, product, s_.cores());
  gpu::MatVec(s_.stream(), product, s_.cores());
  const MatrixView<float> row(product.y, 1, inter);
  gpu::GateRows(s_.stream(), s_.spec().activation, {.gate = row}, row);
}

void OneToken::Finish(const BlockStage& block, Halves half) {
  const DeviceHalf& w = s_.HalfOf(block, half);
  const bool mlp = half == Halves::kMlp, plain = s_.spec().PlainUpdates();
  const MatrixView<float> h(h_, 1, s_.hidden());
  float* const update = plain ? h_ : s_.Floats(CudaArray::kMlpUpdate, s_.hidden());
  if (mlp && s_.MlpOf(block).mixture) {
    mixture_.Sum(plain, {update, 1, s_.hidden()});
    if (!plain) s_.AddNormed(h, update, w);
    return;
  }
  gpu::MatVecProblem product{.w = w.last.rows,
                             .rows = s_.hidden(),
                             .cols = w.inputs,
                             .x = s_.Floats(mlp ? CudaArray::kActivation : CudaArray::kAttended, w.inputs),
                             .y = update};
  if (!plain) {
    gpu::MatVec(s_.stream(), product, s_.cores());
    return s_.AddNormed(h, update, w);
  }
  product.bias = w.last_bias.data();
  gpu::MatVecAdd(s_.stream(), product, h_, s_.cores());
}

void OneToken::Adapter(const AdapterStage& adapter) {
  const DeviceLra& lra = s_.AdapterOf(adapter);
  const auto weight = [](const DeviceBuffer<float>& w) { return ConstDeviceArray(w.data(), DType::kFloat32); };
  float* const x = s_.InputOf(lra, {h_, 1, s_.hidden()});
  if (lra.rank == 0) {
    // Every row of a full map reads all of the stream before.
    gpu::MatVecAdd(
        s_.stream(),
        {.w = weight(lra.a), .rows = s_.hidden(), .cols = s_.hidden(), .x = x, .bias = lra.bias.data(), .y = spare_},
        h_, s_.cores());
    return std::swap(h_, spare_);
  }
  const gpu::LowRankLra call{lra.p.data(), lra.q.data(), lra.bias.data(), s_.hidden(), lra.rank};
  // The kernel that has both products reads the stream itself.
  if (x == h_ && (gpu::LraTakesCluster(s_.stream(), call) || gpu::LraTakesGrid(call, s_.cores())))
    return gpu::ApplyLowRankLra(s_.stream(), call, s_.Floats(CudaArray::kInner, gpu::LowRankLraScratch(call)), h_);
  float* const inner = s_.Floats(CudaArray::kInner, lra.rank);
  gpu::MatVec(s_.stream(), {.w = weight(lra.p), .rows = lra.rank, .cols = s_.hidden(), .x = x, .y = inner}, s_.cores());
  gpu::MatVecAdd(
      s_.stream(),
      {.w = weight(lra.q), .rows = s_.hidden(), .cols = lra.rank, .x = inner, .bias = lra.bias.data(), .y = h_}, h_,
      s_.cores());
}

Rows OneToken::Update(const BlockStage&, Halves) { Fail("fused layers keep no update apart that could be tapped"); }
Rows OneToken::Heads() { Fail("fused layers are not tapped"); }
Rows OneToken::Activation() { Fail("fused layers are not tapped"); }

}  // namespace shiftrt
