// SPDX-License-Identifier: Apache-2.0
// The call in progress, as the launches of a GPU read it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/rope_table.h"
#include "engine/cuda/rows.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"

namespace shiftrt {

struct CudaKv : KvStorage {
  CudaKv(std::shared_ptr<const StreamRows> stream, int64_t capacity) : KvStorage(capacity), stream(std::move(stream)) {}
  struct Slot {
    gpu::DeviceBuffer<std::byte> keys, values;  // (capacity, kv_dim)
  };
  std::shared_ptr<const StreamRows> stream;  // the memory goes back to it
  std::vector<Slot> slots;                   // one per block whose attention runs, in plan order
};

// Arrays in device memory, and sizes.
struct Step {
  int64_t count = 0;  // the number of tokens that the arrays describe
  // rotations: the rows of the tables of rotations, which are the positions unless a sequence has the long factors.
  const int32_t *tokens = nullptr, *rotations = nullptr, *cache_rows = nullptr, *first_row = nullptr,
                *visible = nullptr;
  const gpu::PackedSequence* sequences = nullptr;
  int64_t sequence_count = 0, longest = 0;
  int64_t longest_keys = 0;  // no query will see more
  // The rows of keys that branches have in one piece with their own; they stand behind the call's.
  const int32_t* joined_rows = nullptr;
  int64_t joined_count = 0;
};

inline gpu::SampleRequest RequestOf(const Draw& draw) {
  return {draw.sampling.temperature, draw.sampling.top_p, draw.uniform, draw.sampling.top_k};
}

// The shape of the attention of a block with this window.
gpu::AttentionShape AttentionShapeOf(const ModelConfig& config, int64_t window);

class CudaCall {
 public:
  // `places`: whether launches read Step::cache_rows, where keys and values of the tokens belong.
  CudaCall(gpu::Stream stream, const ModelConfig& config, bool places)
      : stream_(stream), config_(config), places_(places) {
    ropes_.emplace_back(stream, config.rope, config.head_dim);
    if (std::find(config.block.ropes.begin(), config.block.ropes.end(), RopeChoice::kSecond) !=
        config.block.ropes.end())
      ropes_.emplace_back(stream, config.second_rope, config.head_dim);
  }

  // Copies what the launches of `call` read to the device, in one copy. Throws Error for a token outside the
  // vocabulary. Both return whether an array moved that recorded launches may read.
  bool Begin(const LayerCall& call);
  // Begin() for one token that continues a cache, the one in `chosen`. Copies nothing to the device; writes the next
  // request to `request`.
  bool BeginOnChosen(const LayerCall& call, const int32_t* chosen, gpu::SampleRequest* request);

  const Step& step() const { return step_; }
  const CudaKv* cache() const { return cache_; }  // null: the call has none
  gpu::RopeTable rope(int64_t layer) const {
    const RopeChoice choice = config_.block.Rope(layer);
    return choice == RopeChoice::kNone ? gpu::RopeTable{} : ropes_[choice == RopeChoice::kSecond ? 1 : 0].table();
  }

 private:
  gpu::Stream stream_;
  const ModelConfig& config_;
  bool ExtendRopes(int64_t positions) {
    bool moved = false;
    for (GrowingRopeTable& rope : ropes_) moved |= rope.Extend(positions);
    return moved;
  }

  const bool places_;
  std::vector<GrowingRopeTable> ropes_;  // tables of ModelConfig::rope and, if a layer has it, second_rope
  gpu::DeviceBuffer<int32_t> numbers_;
  const CudaKv* cache_ = nullptr;
  Step step_;
};

}  // namespace shiftrt
