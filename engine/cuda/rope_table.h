// SPDX-License-Identifier: Apache-2.0
// The rotations of a model's positions in GPU memory.
#pragma once

#include "kernels/cuda/rope.h"
#include "models/config.h"

namespace shiftrt {

class GrowingRopeTable {
 public:
  GrowingRopeTable(gpu::Stream stream, const ModelConfig& config) : stream_(stream), half_(config.head_dim / 2) {
    const RopeFrequencies rope = MakeRopeFrequencies(config);
    frequencies_ = gpu::DeviceBuffer<float>(stream, std::span<const float>(rope.inverse), "RoPE");
    scale_ = rope.scale;
  }
  // Computes the rotations of positions 0 .. positions - 1, unless they are there. Returns whether the table moved.
  bool Extend(int64_t positions) {
    if (positions <= positions_) return false;
    positions_ = 0;  // until both are there: there may be no room
    cosine_.Reserve(stream_, positions * half_, "RoPE");
    sine_.Reserve(stream_, positions * half_, "RoPE");
    gpu::MakeRopeTable(stream_, positions, frequencies_.data(), half_, scale_, cosine_.data(), sine_.data());
    positions_ = positions;
    return true;
  }
  gpu::RopeTable table() const { return {cosine_.data(), sine_.data()}; }

 private:
  gpu::Stream stream_;
  int64_t half_;
  gpu::DeviceBuffer<float> frequencies_;
  float scale_ = 1;
  int64_t positions_ = 0;
  gpu::DeviceBuffer<float> cosine_, sine_;
};

}  // namespace shiftrt
