// SPDX-License-Identifier: Apache-2.0
// The scale of a group is found by trial: of candidates near the one that spans the largest number, each is replaced by
// the least squares fit to the codes that it gives. The scales of a super-block are then rounded to integers times one
// number, and the integers next to the nearest are tried too. Source of the layouts: runtime/block_types.cc, which is
// their inverse.
#include "runtime/block_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>

namespace shiftrt {

namespace {

constexpr BlockGrid kGrids[] = {
    {DType::kQ4_0, false, 32, -8, 7, 0, 0},     {DType::kQ4_1, true, 32, 0, 15, 0, 0},
    {DType::kQ5_0, false, 32, -16, 15, 0, 0},   {DType::kQ5_1, true, 32, 0, 31, 0, 0},
    {DType::kQ8_0, false, 32, -127, 127, 0, 0}, {DType::kQ2_K, true, 16, 0, 3, 0, 15},
    {DType::kQ3_K, false, 16, -4, 3, -32, 31},  {DType::kQ4_K, true, 32, 0, 15, 0, 63},
    {DType::kQ5_K, true, 32, 0, 31, 0, 63},     {DType::kQ6_K, false, 16, -32, 31, -128, 127},
};

float RoundedToHalf(float value) { return static_cast<float>(Float16(value)); }

// The nearest integer of a number below 2^22.
float Integer(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: above it a float32 has no fraction
  return (value + kShift) - kShift;
}

// A group of numbers, their weights, and the codes that they can have.
struct Group {
  const float* values;
  const float* weights;
  int count;
  float low, high;

  float Code(float at) const { return std::clamp(Integer(at), low, high); }
  // The weighted error with each number at its nearest code.
  float Error(float scale, float offset) const {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    float error = 0;
    for (int i = 0; i < count; ++i) {
      const float off = scale * Code((values[i] - offset) * inverse) + offset - values[i];
      error += weights[i] * off * off;
    }
    return error;
  }
};

struct Affine {
  float scale = 0, offset = 0;
};

// Sums over a group for the codes that one scale and offset give.
struct CodeSums {
  float w = 0, wx = 0, wq = 0, wqq = 0, wqx = 0;

  CodeSums(const Group& group, const Affine& at) {
    const float inverse = 1 / at.scale;
    for (int i = 0; i < group.count; ++i) {
      const float weight = group.weights[i], x = group.values[i], q = group.Code((x - at.offset) * inverse);
      w += weight;
      wx += weight * x;
      wq += weight * q;
      wqq += weight * q * q;
      wqx += weight * q * x;
    }
  }
};

// Keeps the candidate that explains the most of the sum of squares, with the codes that it was fitted to.
class Search {
 public:
  void Offer(const Affine& candidate, float explained) {
    if (!(explained > explained_) || !std::isfinite(candidate.scale) || !std::isfinite(candidate.offset)) return;
    explained_ = explained;
    best_ = candidate;
  }
  // Least squares for the scale alone.
  void OfferScale(const CodeSums& sums) {
    if (sums.wqq > 0) Offer({sums.wqx / sums.wqq, 0}, sums.wqx * sums.wqx / sums.wqq);
  }
  // Least squares for scale and offset. With `below`, the offset is at most 0.
  void OfferBoth(const CodeSums& sums, bool below) {
    const float determinant = sums.w * sums.wqq - sums.wq * sums.wq;
    if (!(determinant > 1e-5f * sums.w * sums.wqq)) return OfferScale(sums);  // all codes are alike
    const Affine fitted = {(sums.w * sums.wqx - sums.wx * sums.wq) / determinant,
                           (sums.wqq * sums.wx - sums.wq * sums.wqx) / determinant};
    if (below && fitted.offset > 0) return OfferScale(sums);
    Offer(fitted, fitted.scale * sums.wqx + fitted.offset * sums.wx);
  }
  const Affine& best() const { return best_; }

 private:
  float explained_ = -1;
  Affine best_;
};

// The scale alone. Its sign is free: codes may reach one further below 0 than above it.
Affine ScaleOf(const Group& group) {
  float largest = 0;
  for (int i = 0; i < group.count; ++i)
    if (std::abs(group.values[i]) > std::abs(largest)) largest = group.values[i];
  Search search;
  for (const float edge : {group.low, group.high})
    for (int step = -3; step <= 6 && largest != 0; ++step) {
      const Affine first = {largest / (edge * (1 + 0.03f * static_cast<float>(step))), 0};
      if (first.scale != 0) search.OfferScale(CodeSums(group, first));
    }
  return search.best();
}

// Scale and offset. With `below`, the offset is at most 0.
Affine ScaleAndOffsetOf(const Group& group, bool below) {
  const auto [least, most] = std::minmax_element(group.values, group.values + group.count);
  const float bottom = below ? std::min(0.0f, *least) : *least, span = *most - bottom;
  Search search;
  search.Offer({0, bottom}, 0);
  for (int step = -8; step <= 8; ++step) {
    const Affine first = {span / (group.high + 0.1f * static_cast<float>(step)), bottom};
    if (first.scale > 0) search.OfferBoth(CodeSums(group, first), below);
  }
  return search.best();
}

// Rounds the scales of the groups to integers times one number, and the offsets likewise.
void RoundScales(const BlockGrid& grid, std::span<const Group> groups, std::span<const Affine> fitted,
                 RoundedBlock& block) {
  float largest = 0, deepest = 0;
  for (const Affine& one : fitted) {
    if (std::abs(one.scale) > std::abs(largest)) largest = one.scale;
    deepest = std::max(deepest, -one.offset);
  }
  // The largest scale gets the integer of the larger absolute value.
  const int edge = grid.least_scale < 0 ? grid.least_scale : grid.most_scale;
  block.by = RoundedToHalf(largest / static_cast<float>(edge));
  block.less = RoundedToHalf(deepest / static_cast<float>(grid.most_scale));
  const auto code = [](float value, float by, int low, int high) {
    return by == 0 ? 0 : std::clamp(static_cast<int>(std::lround(value / by)), low, high);
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    const int scale = code(fitted[g].scale, block.by, grid.least_scale, grid.most_scale);
    const int offset = grid.offset ? code(-fitted[g].offset, block.less, 0, grid.most_scale) : 0;
    block.scale[g] = block.offset[g] = 0;
    block.scale_code[g] = block.offset_code[g] = 0;
    float best = std::numeric_limits<float>::infinity();
    for (int s = std::max(grid.least_scale, scale - 1); s <= std::min(grid.most_scale, scale + 1); ++s)
      for (int o = std::max(0, offset - 1); o <= (grid.offset ? std::min(grid.most_scale, offset + 1) : 0); ++o) {
        const Affine tried = {block.by * static_cast<float>(s), -(block.less * static_cast<float>(o))};
        const float error = groups[g].Error(tried.scale, tried.offset);
        if (error >= best) continue;
        best = error;
        block.scale[g] = tried.scale;
        block.offset[g] = tried.offset;
        block.scale_code[g] = s;
        block.offset_code[g] = o;
      }
  }
}

class Writer {
 public:
  explicit Writer(std::byte* out) : out_(out) {}
  void Half(float value) {
    const Float16 half(value);
    std::memcpy(out_, &half.bits, sizeof(half.bits));
    out_ += sizeof(half.bits);
  }
  std::byte* Take(int64_t count) {
    std::byte* const here = out_;
    std::memset(here, 0, static_cast<size_t>(count));
    out_ += count;
    return here;
  }

 private:
  std::byte* out_;
};

void Set(std::byte& byte, int bits) { byte |= static_cast<std::byte>(bits); }

// The inverses of the functions of these names in block_types.cc.
void TwoBits(std::byte* data, int64_t i, int bits) { Set(data[i / 128 * 32 + i % 32], bits << (i / 32 % 4 * 2)); }
void OneBit(std::byte* data, int64_t i, int bit) { Set(data[i % 32], bit << (i / 32)); }
void FourBits(std::byte* data, int64_t i, int bits) { Set(data[i / 64 * 32 + i % 32], bits << (i / 32 % 2 * 4)); }

// Blocks of 32: scale, offset, fifth bits, and nibbles, of which the low ones come first.
void PackNibbles(const BlockGrid& grid, const RoundedBlock& block, Writer out) {
  out.Half(block.scale[0]);
  if (grid.offset) out.Half(block.offset[0]);
  const bool five = grid.high - grid.low == 31;
  std::byte* const fifths = five ? out.Take(4) : nullptr;
  std::byte* const nibbles = out.Take(16);
  for (int i = 0; i < 32; ++i) {
    const int code = block.codes[i] - grid.low;
    Set(nibbles[i % 16], (code & 15) << (i < 16 ? 0 : 4));
    if (five) Set(fifths[i / 8], code >> 4 << i % 8);
  }
}

void PackQ8(const RoundedBlock& block, Writer out) {
  out.Half(block.scale[0]);
  std::memcpy(out.Take(32), block.codes.data(), 32);
}

void PackQ2K(const RoundedBlock& block, Writer out) {
  std::byte *const scales = out.Take(16), *const twos = out.Take(64);
  for (int64_t g = 0; g < 16; ++g) Set(scales[g], block.scale_code[g] | block.offset_code[g] << 4);
  for (int64_t i = 0; i < 256; ++i) TwoBits(twos, i, block.codes[i]);
  out.Half(block.by);
  out.Half(block.less);
}

void PackQ3K(const RoundedBlock& block, Writer out) {
  std::byte *const highs = out.Take(32), *const twos = out.Take(64), *const scales = out.Take(12);
  for (int64_t g = 0; g < 16; ++g) {
    const int code = block.scale_code[g] + 32;
    Set(scales[g % 8], (code & 15) << (g / 8 * 4));
    Set(scales[8 + g % 4], code >> 4 << (g / 4 * 2));
  }
  for (int64_t i = 0; i < 256; ++i) {
    const int code = block.codes[i] + 4;
    TwoBits(twos, i, code & 3);
    OneBit(highs, i, code >> 2);
  }
  out.Half(block.by);
}

// Q4_K and Q5_K.
void PackSixBitScales(const BlockGrid& grid, const RoundedBlock& block, Writer out) {
  out.Half(block.by);
  out.Half(block.less);
  std::byte* const scales = out.Take(12);
  for (int64_t g = 0; g < 4; ++g) {
    Set(scales[g], block.scale_code[g] | block.scale_code[4 + g] >> 4 << 6);
    Set(scales[4 + g], block.offset_code[g] | block.offset_code[4 + g] >> 4 << 6);
    Set(scales[8 + g], (block.scale_code[4 + g] & 15) | (block.offset_code[4 + g] & 15) << 4);
  }
  std::byte* const highs = grid.high > 15 ? out.Take(32) : nullptr;
  std::byte* const nibbles = out.Take(128);
  for (int64_t i = 0; i < 256; ++i) {
    FourBits(nibbles, i, block.codes[i] & 15);
    if (highs != nullptr) OneBit(highs, i, block.codes[i] >> 4);
  }
}

void PackQ6K(const RoundedBlock& block, Writer out) {
  std::byte *const nibbles = out.Take(128), *const twos = out.Take(64), *const scales = out.Take(16);
  for (int64_t i = 0; i < 256; ++i) {
    const int code = block.codes[i] + 32;
    Set(nibbles[i / 128 * 64 + i % 64], (code & 15) << (i / 64 % 2 * 4));
    TwoBits(twos, i, code >> 4);
  }
  for (int64_t g = 0; g < 16; ++g) scales[g] = static_cast<std::byte>(block.scale_code[g]);
  out.Half(block.by);
}

}  // namespace

const BlockGrid* FindGrid(DType type) {
  const auto* const row =
      std::find_if(std::begin(kGrids), std::end(kGrids), [&](const BlockGrid& grid) { return grid.type == type; });
  return row == std::end(kGrids) ? nullptr : row;
}

bool ChooseScales(const BlockGrid& grid, const float* values, const float* weights, RoundedBlock& block) {
  for (int64_t i = 0; i < grid.elements(); ++i)
    if (!std::isfinite(values[i])) return false;
  std::array<Group, BlockGrid::kMostGroups> groups;
  std::array<Affine, BlockGrid::kMostGroups> fitted;
  const int64_t count = grid.groups();
  for (int64_t g = 0; g < count; ++g) {
    groups[g] = {values + g * grid.group, weights + g * grid.group, grid.group, static_cast<float>(grid.low),
                 static_cast<float>(grid.high)};
    fitted[g] = grid.offset ? ScaleAndOffsetOf(groups[g], grid.scaled_scales()) : ScaleOf(groups[g]);
  }
  if (grid.scaled_scales()) {
    RoundScales(grid, {groups.data(), static_cast<size_t>(count)}, {fitted.data(), static_cast<size_t>(count)}, block);
    return std::isfinite(block.by) && std::isfinite(block.less);
  }
  block.scale[0] = RoundedToHalf(fitted[0].scale);
  block.offset[0] = RoundedToHalf(fitted[0].offset);
  return std::isfinite(block.scale[0]) && std::isfinite(block.offset[0]);
}

void Pack(const BlockGrid& grid, const RoundedBlock& block, std::byte* out) {
  const Writer writer(out);
  switch (grid.type) {
    case DType::kQ8_0: return PackQ8(block, writer);
    case DType::kQ2_K: return PackQ2K(block, writer);
    case DType::kQ3_K: return PackQ3K(block, writer);
    case DType::kQ4_K:
    case DType::kQ5_K: return PackSixBitScales(grid, block, writer);
    case DType::kQ6_K: return PackQ6K(block, writer);
    default: return PackNibbles(grid, block, writer);
  }
}

bool RoundBlocks(const BlockGrid& grid, const float* values, int64_t blocks, const float* weights, int64_t row,
                 std::byte* out) {
  static constexpr std::array<float, BlockGrid::kMostElements> kOnes = [] {
    std::array<float, BlockGrid::kMostElements> ones;
    ones.fill(1);
    return ones;
  }();
  const int64_t elements = grid.elements(), bytes = LayoutOf(grid.type).bytes;
  RoundedBlock block;
  for (int64_t b = 0; b < blocks; ++b) {
    const float* const of = values + b * elements;
    if (!ChooseScales(grid, of, weights == nullptr ? kOnes.data() : weights + b * elements % row, block)) return false;
    for (int64_t i = 0; i < elements; ++i) block.codes[i] = static_cast<int8_t>(Nearest(grid, block, i, of[i]));
    Pack(grid, block, out + b * bytes);
  }
  return true;
}

}  // namespace shiftrt
