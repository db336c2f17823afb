// SPDX-License-Identifier: Apache-2.0
// The rotations of a model's positions in GPU memory.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/rope.h"
#include "models/config.h"

namespace shiftrt {

// One row for each position; with long factors, these follow the rows for the positions of short sequences.
class GrowingRopeTable {
 public:
  GrowingRopeTable(gpu::Stream stream, const RopeSpec& spec, int64_t head_dim)
      : stream_(stream), spec_(spec), head_dim_(head_dim), frequencies_(stream, MakeRopeFrequencies(spec, head_dim)) {
    if (spec.kind == RopeKind::kLongRope)
      long_frequencies_ = Frequencies(stream, MakeRopeFrequencies(spec, head_dim, /*is_long=*/true));
  }
  // Computes the rotations of positions 0 .. positions - 1, unless they are there. Returns whether the table moved.
  bool Extend(int64_t positions) {
    if (positions <= positions_) return false;
    positions_ = 0;  // until all are there: there may be no room
    const int64_t half = head_dim_ / 2, first_long = FirstRow(positions), rows = first_long + positions;
    cosine_.Reserve(stream_, rows * half, "RoPE");
    sine_.Reserve(stream_, rows * half, "RoPE");
    Fill(frequencies_, 0, first_long > 0 ? first_long : positions);
    if (first_long > 0) Fill(long_frequencies_, first_long, positions);
    if (spec_.query_beta != 0) {
      std::vector<float> scales;
      for (int64_t p = 0; p < positions; ++p) scales.push_back(spec_.QueryScale(p));
      query_scales_ = gpu::DeviceBuffer<float>(stream_, std::span<const float>(scales), "RoPE");
    }
    positions_ = positions;
    return true;
  }
  // The row of position 0 of a sequence of so many tokens (CallLayout::Sequence::reach).
  int64_t FirstRow(int64_t reach) const { return spec_.IsLong(reach) ? spec_.original_max_positions : 0; }
  gpu::RopeTable table() const {
    return {cosine_.data(), sine_.data(), query_scales_.data(), static_cast<int>(spec_.RotaryDim(head_dim_)),
            spec_.interleaved};
  }

 private:
  struct Frequencies {
    Frequencies() = default;
    Frequencies(gpu::Stream stream, const RopeFrequencies& of)
        : inverse(stream, std::span<const float>(of.inverse), "RoPE"), scale(of.scale) {}
    gpu::DeviceBuffer<float> inverse;
    float scale = 1;
  };
  void Fill(const Frequencies& from, int64_t row, int64_t rows) {
    const int64_t half = head_dim_ / 2;
    gpu::MakeRopeTable(stream_, rows, from.inverse.data(), half, from.scale, cosine_.data() + row * half,
                       sine_.data() + row * half);
  }

  gpu::Stream stream_;
  const RopeSpec& spec_;
  int64_t head_dim_;
  Frequencies frequencies_, long_frequencies_;
  int64_t positions_ = 0;
  gpu::DeviceBuffer<float> cosine_, sine_, query_scales_;
};

}  // namespace shiftrt
