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
  s_.Embed(h_);
}

void OneToken::Resume(const Rows&) {
  Begin();
  if (from_ != h_) gpu::CopyOnDevice(s_.stream(), h_, from_, s_.hidden() * static_cast<int64_t>(sizeof(float)));
}

void OneToken::Attention(const BlockStage& block, int64_t slot) {
  const DeviceAttention& w = s_.AttentionOf(block);
  const KeysValues kv = s_.Place(slot);
  const int64_t q_dim = s_.config().query_dim(), qkv_dim = q_dim + 2 * s_.config().kv_dim();
  const DeviceArray q = s_.Get(CudaArray::kQueries, q_dim, DType::kFloat32);
  float* const attended = s_.Floats(CudaArray::kAttended, q_dim);
  const bool parallel = s_.Parallel(block);
  gpu::MatVecProblem product = s_.OfNormed(h_, s_.NormOf(w.norm), parallel,
                                           {.w = {w.qkv.data(), s_.dtype()}, .rows = qkv_dim, .cols = s_.hidden()});
  // The MLP reads the stream before the attention's update is added.
  if (parallel && !s_.spec().shared_norm)
    s_.OfNormed(h_, s_.NormOf(s_.MlpOf(block).norm), true, {}, s_.ParallelMlpInput());
  if (w.q_norm.size() == 0) {
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
  } else {  // the norm of a head needs all of its rows before RoPE
    const DeviceArray qkv = s_.Get(CudaArray::kQkv, qkv_dim, DType::kFloat32);
    product.y = static_cast<float*>(qkv.data);
    gpu::MatVec(s_.stream(), product, s_.cores());
    s_.Rotate(block.layer, w, qkv, q, kv);
  }
  s_.AttendSplit(block.layer, q, kv, attended);
  AddProduct({.w = {w.o.data(), s_.dtype()}, .rows = s_.hidden(), .cols = q_dim, .x = attended}, w.o_bias,
             w.update_norm);
}

// h += the product and its bias, which a family may norm or scale first.
void OneToken::AddProduct(gpu::MatVecProblem product, const DeviceBuffer<float>& bias,
                          const DeviceBuffer<float>& norm) {
  if (!s_.spec().PlainUpdates()) {
    product.y = s_.Floats(CudaArray::kMlpUpdate, s_.hidden());
    gpu::MatVec(s_.stream(), product, s_.cores());
    return s_.AddNormed({h_, 1, s_.hidden()}, product.y, bias, norm);
  }
  product.bias = bias.data();
  product.y = h_;
  gpu::MatVecAdd(s_.stream(), product, h_, s_.cores());
}

gpu::MatVecProblem OneToken::OfMlpInput(const BlockStage& block, gpu::MatVecProblem problem) {
  if (!s_.Parallel(block)) return s_.OfNormed(h_, s_.NormOf(s_.MlpOf(block).norm), false, problem);
  problem.x = s_.Floats(s_.ParallelMlpInput(), s_.hidden());  // Attention() has left it there
  return problem;
}

void OneToken::Mlp(const BlockStage& block) {
  const DeviceMlp& w = s_.MlpOf(block);
  const int64_t inter = s_.config().intermediate;
  float* const activation = s_.Floats(CudaArray::kActivation, inter);
  const gpu::MatVecProblem product = OfMlpInput(block, {.w = {w.gate_up.data(), s_.dtype()},
                                                        .rows = s_.spec().gated ? 2 * inter : inter,
                                                        .cols = s_.hidden(),
                                                        .bias = w.gate_up_bias.data(),
                                                        .y = activation});
  if (s_.spec().gated) {
    const auto gated = s_.spec().activation == Activation::kSilu ? gpu::MatVecSwiGlu : gpu::MatVecGeGlu;
    gated(s_.stream(), product, s_.cores());
  } else {
    gpu::MatVec(s_.stream(), product, s_.cores());
    const MatrixView<float> row(activation, 1, inter);
    gpu::GateRows(s_.stream(), s_.spec().activation, {.gate = row}, row);
  }
  AddProduct({.w = {w.down.data(), s_.dtype()}, .rows = s_.hidden(), .cols = inter, .x = activation}, w.down_bias,
             w.update_norm);
}

void OneToken::Adapter(const AdapterStage& adapter) {
  const DeviceLra& lra = s_.AdapterOf(adapter);
  const auto weight = [](const DeviceBuffer<float>& w) { return ConstDeviceArray(w.data(), DType::kFloat32); };
  if (lra.rank == 0) {
    // Every row of a full map reads all of the stream before.
    gpu::MatVecAdd(
        s_.stream(),
        {.w = weight(lra.a), .rows = s_.hidden(), .cols = s_.hidden(), .x = h_, .bias = lra.bias.data(), .y = spare_},
        h_, s_.cores());
    return std::swap(h_, spare_);
  }
  const gpu::LowRankLra call{lra.p.data(), lra.q.data(), lra.bias.data(), s_.hidden(), lra.rank};
  if (gpu::LraTakesCluster(s_.stream(), call) || gpu::LraTakesGrid(call, s_.cores()))
    return gpu::ApplyLowRankLra(s_.stream(), call, s_.Floats(CudaArray::kInner, gpu::LowRankLraScratch(call)), h_);
  float* const inner = s_.Floats(CudaArray::kInner, lra.rank);
  gpu::MatVec(s_.stream(), {.w = weight(lra.p), .rows = lra.rank, .cols = s_.hidden(), .x = h_, .y = inner},
              s_.cores());
  gpu::MatVecAdd(
      s_.stream(),
      {.w = weight(lra.q), .rows = s_.hidden(), .cols = lra.rank, .x = inner, .bias = lra.bias.data(), .y = h_}, h_,
      s_.cores());
}

Rows OneToken::Update(const BlockStage&, Halves) { Fail("fused layers keep no update apart that could be tapped"); }
Rows OneToken::Heads() { Fail("fused layers are not tapped"); }
Rows OneToken::Activation() { Fail("fused layers are not tapped"); }

}  // namespace shiftrt
