// SPDX-License-Identifier: Apache-2.0
// A model on its GPU, and the call in progress as launches read it: the base of inference (engine/cuda/state.h) and of
// gradients (engine/cuda/ops.cc).
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/delta_ranges.h"
#include "engine/cuda/kv.h"
#include "engine/cuda/rope_table.h"
#include "engine/cuda/weights.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"

namespace shiftrt {

// Arrays in device memory, and sizes.
struct Step {
  int64_t count = 0;  // the number of tokens that the arrays describe
  // rotations: the rows of the tables of rotations, which are the positions unless a sequence has the long factors.
  // cache_rows: the rows of the cache where keys and values of the tokens belong; null without a cache.
  const int32_t *tokens = nullptr, *rotations = nullptr, *cache_rows = nullptr, *first_row = nullptr,
                *visible = nullptr;
  const gpu::PackedSequence* sequences = nullptr;
  int64_t sequence_count = 0, longest = 0;
  int64_t longest_keys = 0;  // no query will see more
  bool one_each = false;     // several sequences append a token each to their caches
  // The rows of keys that branches have in one piece with their own; they stand after the call's.
  const int32_t* joined_rows = nullptr;
  int64_t joined_count = 0;
  const gpu::DeltaRange* delta_ranges = nullptr;  // as many as CudaCall::delta_ranges() has
};

inline gpu::SampleRequest RequestOf(const Draw& draw) {
  return {draw.sampling.temperature, draw.sampling.top_p, draw.uniform, draw.sampling.top_k};
}

class CudaCall {
 public:
  CudaCall(const Context& context, std::shared_ptr<const Weights> weights);
  CudaCall(const CudaCall&) = delete;
  CudaCall& operator=(const CudaCall&) = delete;

  const Weights& weights() const { return *weights_; }
  const ModelConfig& config() const { return weights_->config; }
  const BlockSpec& spec() const { return config().block; }
  int64_t hidden() const { return config().hidden; }
  float eps() const { return static_cast<float>(config().rms_eps); }
  const std::shared_ptr<DeviceWeights>& device() const { return device_; }
  gpu::Stream stream() const { return device_->stream(); }
  // The type of the weights that are not quantised, of cached keys and values, and of what products of many rows read.
  DType dtype() const { return device_->dtype(); }
  int cores() const { return device_->info().multiprocessors; }
  gpu::Products& products() { return device_->products(); }
  // Reads dense weights as a stream if the call has few tokens for that and is to have bits that do not depend on how
  // many they are.
  void MatMul(const gpu::MatMulProblem& problem, const gpu::WeightRows& w) const {
    device_->MatMul(problem, w, step_.one_each);
  }
  const std::shared_ptr<const StreamRows>& rows() const { return device_->rows(); }

  // Copies what the launches of `call` read to the device, in one copy. Throws Error for a token outside the
  // vocabulary. Both return whether an array moved that recorded launches may read.
  bool Begin(const LayerCall& call);
  // Begin() for one token that continues a cache, the one in `chosen`. Copies nothing to the device; writes the next
  // request to `request`.
  bool BeginOnChosen(const LayerCall& call, const int32_t* chosen, gpu::SampleRequest* request);

  const Step& step() const { return step_; }
  const DeltaRanges& delta_ranges() const { return delta_ranges_; }
  const KvPool* caches() const { return caches_; }  // those of the call's sequences; null: they have none
  // h (tokens, hidden) = the embeddings of the call's tokens.
  void Embed(MatrixView<float> h) const;
  gpu::RopeTable rope(int64_t layer) const {
    const RopeChoice choice = spec().Rope(layer);
    return choice == RopeChoice::kNone ? gpu::RopeTable{} : ropes_[choice == RopeChoice::kSecond ? 1 : 0].table();
  }
  gpu::AttentionShape ShapeOf(int64_t layer) const;
  // The attention of the call's queries: with float32 queries by gpu::AttendSplit(), and otherwise by
  // gpu::AttendPacked(). `rows` are those of keys and values.
  struct Attention {
    int64_t layer;
    gpu::ConstDeviceArray q, keys, values;
    int64_t rows;
    gpu::DeviceArray out;       // in the type of q
    float* log_sums = nullptr;  // as in gpu::PackedAttention
    const float* sinks = nullptr;
  };
  void Attend(const Attention& a);

 private:
  bool ExtendRopes(int64_t positions) {
    bool moved = false;
    for (GrowingRopeTable& rope : ropes_) moved |= rope.Extend(positions);
    return moved;
  }

  const std::shared_ptr<const Weights> weights_;
  const std::shared_ptr<DeviceWeights> device_;
  std::vector<GrowingRopeTable> ropes_;  // tables of ModelConfig::rope and, if a layer has it, second_rope
  gpu::DeviceBuffer<int32_t> numbers_;
  const KvPool* caches_ = nullptr;
  DeltaRanges delta_ranges_;
  Step step_;

 protected:
  gpu::SplitScratch shares_;  // freed before device_, whose stream it was allocated in
};

}  // namespace shiftrt
