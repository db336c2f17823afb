// One decoded token: matrix-vector products fused with what surrounds them, recorded once and replayed. The stream
// stays in place, every product but a full adapter's reads and adds to it.
#include <algorithm>
#include <utility>

#include "engine/cuda/cuda_engine.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/lra.h"
#include "kernels/cuda/matvec.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;

void CudaEngine::OneTokenBlock(const Step& step, const DeviceBlock& block, const KeysValues& kv, float* h) {
  const int cores = device_->info.multiprocessors;
  const int64_t q_dim = config_.query_dim(), qkv_dim = q_dim + 2 * config_.kv_dim(), inter = config_.intermediate;
  const DeviceArray qkv = qkv_.Get(stream_, qkv_dim, DType::kFloat32), q = q_.Get(stream_, q_dim, DType::kFloat32);
  float* const attended = attended_.Floats(stream_, q_dim);
  float* const activation = activation_.Floats(stream_, inter);
  gpu::MatVec(stream_,
              {.w = {block.qkv.data(), dtype_},
               .rows = qkv_dim,
               .cols = hidden_,
               .x = h,
               .norm_weight = block.input_norm.data(),
               .eps = Eps(),
               .y = static_cast<float*>(qkv.data)},
              cores);
  Rotate(step, block, qkv, q, kv);
  const int splits = gpu::AttentionSplits(shape_, 1, step.longest_keys, cores);
  gpu::AttendSplit(stream_, {.shape = shape_,
                             .q = static_cast<const float*>(q.data),
                             .keys = kv.keys,
                             .values = kv.values,
                             .first_row = step.first_row,
                             .visible = step.visible,
                             .tokens = 1,
                             .splits = splits,
                             .scratch = shares_.Floats(stream_, gpu::SplitAttentionScratch(shape_, 1, splits)),
                             .out = attended});
  gpu::MatVecAdd(stream_,
                 {.w = {block.o.data(), dtype_},
                  .rows = hidden_,
                  .cols = q_dim,
                  .x = attended,
                  .bias = block.o_bias.data(),
                  .y = h},
                 h, cores);
  gpu::MatVecSwiGlu(stream_,
                    {.w = {block.gate_up.data(), dtype_},
                     .rows = 2 * inter,
                     .cols = hidden_,
                     .x = h,
                     .norm_weight = block.post_norm.data(),
                     .eps = Eps(),
                     .bias = block.gate_up_bias.data(),
                     .y = activation},
                    cores);
  gpu::MatVecAdd(stream_,
                 {.w = {block.down.data(), dtype_},
                  .rows = hidden_,
                  .cols = inter,
                  .x = activation,
                  .bias = block.down_bias.data(),
                  .y = h},
                 h, cores);
}

// h becomes the stream after the adapter. Every row of a full map reads all of the stream before, so that the one after
// stands in `spare`.
void CudaEngine::OneTokenAdapter(const DeviceLra& lra, float*& h, float*& spare) {
  const int cores = device_->info.multiprocessors;
  const auto weight = [](const DeviceBuffer<float>& w) { return ConstDeviceArray(w.data(), DType::kFloat32); };
  const gpu::LowRankLra call{lra.p.data(), lra.q.data(), lra.bias.data(), hidden_, lra.rank};
  if (lra.rank > 0 && gpu::LowRankLraFits(call, cores))
    return gpu::ApplyLowRankLra(stream_, call, inner_.Floats(stream_, gpu::LowRankLraScratch(call)), h);
  if (lra.rank > 0) {
    float* const inner = inner_.Floats(stream_, lra.rank);
    gpu::MatVec(stream_, {.w = weight(lra.p), .rows = lra.rank, .cols = hidden_, .x = h, .y = inner}, cores);
    gpu::MatVecAdd(stream_,
                   {.w = weight(lra.q), .rows = hidden_, .cols = lra.rank, .x = inner, .bias = lra.bias.data(), .y = h},
                   h, cores);
    return;
  }
  gpu::MatVecAdd(stream_,
                 {.w = weight(lra.a), .rows = hidden_, .cols = hidden_, .x = h, .bias = lra.bias.data(), .y = spare}, h,
                 cores);
  std::swap(h, spare);
}

void CudaEngine::RunOneToken(const Step& step, const CudaKv* cache, bool sample) {
  const Recorded wanted{cache, sample};
  if (recorded_ != wanted) graph_.Reset();
  recorded_ = wanted;
  graph_.Run(stream_, [&] {
    float *h = residual_.Floats(stream_, hidden_), *spare = update_.Floats(stream_, hidden_);
    const auto full = [](const Stage& stage) {
      return stage.Visit([](const BlockStage&) { return false; },
                         [](const AdapterStage& adapter) { return !adapter.lra->low_rank(); });
    };
    // Each full map changes places; the last one leaves the stream where it is looked for.
    if (std::count_if(plan_.stages.begin(), plan_.stages.end(), full) % 2 == 1) std::swap(h, spare);
    gpu::Embed(stream_, step.tokens, 1, {device_->embedding.data(), dtype_}, hidden_, h);
    size_t blocks_run = 0;
    for (const Stage& stage : plan_.stages) {
      stage.Visit(
          [&](const BlockStage& block) { OneTokenBlock(step, BlockOf(block), Place(step, cache, blocks_run++), h); },
          [&](const AdapterStage& adapter) { OneTokenAdapter(AdapterOf(adapter), h, spare); });
    }
    if (sample) Sample(h);
  });
}

}  // namespace shiftrt
