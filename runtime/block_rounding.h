// SPDX-License-Identifier: Apache-2.0
// Rounds float32 numbers to GGUF's blocks of quantised numbers (runtime/block_types.h decodes them). The two steps are
// apart, so that a caller can correct each number for the errors of those before it: ChooseScales() decides what the
// codes of a block stand for, Nearest() the code of one number, and Pack() writes the block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/dtype.h"

namespace shiftrt {

// The numbers that a type can hold: in each group, scale * code + offset for the codes low .. high.
struct BlockGrid {
  static constexpr int64_t kMostElements = 256, kMostGroups = 16;

  DType type;
  bool offset;  // the groups have an offset besides the scale
  int group;    // elements that share a scale
  int low, high;
  // The integers, times a float16 number of the block, that the scales and the negated offsets of groups are stored as.
  // Both are 0 where a group is a block, whose scale and offset are float16 numbers.
  int least_scale, most_scale;

  int64_t elements() const { return LayoutOf(type).elements; }
  int64_t groups() const { return elements() / group; }
  bool scaled_scales() const { return most_scale > 0; }
};
// Null for a type that nothing is rounded to: plain types, IQ4_NL, IQ4_XS and MXFP4.
const BlockGrid* FindGrid(DType type);

// One block while it is made.
struct RoundedBlock {
  std::array<float, BlockGrid::kMostGroups> scale, offset;  // as Widen() will compute them
  std::array<int, BlockGrid::kMostGroups> scale_code, offset_code;
  float by = 0, less = 0;  // the float16 numbers by which the codes of scales and offsets are multiplied
  std::array<int8_t, BlockGrid::kMostElements> codes;
};

// Chooses scales and offsets for the elements of one block, so that the sum of weights[i] * (error of values[i])^2 is
// small when each element gets its nearest code. The weights are not negative. Cost: about 40 roundings per element.
// False if a value is not finite, or the scale is beyond float16.
bool ChooseScales(const BlockGrid& grid, const float* values, const float* weights, RoundedBlock& block);
// The code of element i whose number is nearest to `value`.
inline int Nearest(const BlockGrid& grid, const RoundedBlock& block, int64_t i, float value) {
  const int64_t g = i / grid.group;
  if (block.scale[g] == 0) return grid.low > 0 ? grid.low : 0;
  const float at = (value - block.offset[g]) / block.scale[g];
  const auto low = static_cast<float>(grid.low), high = static_cast<float>(grid.high);
  const float inside = at < low ? low : at > high ? high : at;
  return static_cast<int>(inside < 0 ? inside - 0.5f : inside + 0.5f);
}
// The number that a code of element i stands for.
inline float Decoded(const BlockGrid& grid, const RoundedBlock& block, int64_t i, int code) {
  return block.scale[i / grid.group] * static_cast<float>(code) + block.offset[i / grid.group];
}
// Writes the block, LayoutOf(grid.type).bytes bytes.
void Pack(const BlockGrid& grid, const RoundedBlock& block, std::byte* out);

// Rounds `blocks` blocks, each number to the nearest code. `weights`: one per number of a row of `row` numbers, which
// are repeated for each row; or null, all alike. Returns false where ChooseScales() does.
bool RoundBlocks(const BlockGrid& grid, const float* values, int64_t blocks, const float* weights, int64_t row,
                 std::byte* out);

}  // namespace shiftrt
