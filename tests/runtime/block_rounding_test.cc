// SPDX-License-Identifier: Apache-2.0
// Rounding to quantised blocks. What a packed block stands for is runtime/block_types.h's, which agrees bit for bit
// with the Python package gguf.
#include "runtime/block_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/block_types.h"

namespace shiftrt {
namespace {

struct Case {
  DType type;
  double most;  // the relative error of numbers of a normal distribution
};
constexpr Case kCases[] = {{DType::kQ8_0, 0.006}, {DType::kQ6_K, 0.025}, {DType::kQ5_K, 0.045}, {DType::kQ5_1, 0.045},
                           {DType::kQ5_0, 0.05},  {DType::kQ4_K, 0.085}, {DType::kQ4_1, 0.085}, {DType::kQ4_0, 0.1},
                           {DType::kQ3_K, 0.19},  {DType::kQ2_K, 0.34}};
constexpr int64_t kBlocks = 16;

class Rounded {
 public:
  Rounded(DType type, const std::vector<float>& values, const float* weights = nullptr, int64_t row = 0)
      : grid(*FindGrid(type)), back(values.size()) {
    const int64_t blocks = std::ssize(values) / grid.elements();
    std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(type, std::ssize(values))));
    held = RoundBlocks(grid, values.data(), blocks, weights, row == 0 ? std::ssize(values) : row, bytes.data());
    if (held) Widen(type, bytes.data(), std::ssize(values), back.data());
  }
  const BlockGrid& grid;
  std::vector<float> back;
  bool held = false;
};

std::vector<float> Normal(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The root of the ratio of sums of squares, weighted.
double RelativeError(const std::vector<float>& values, const std::vector<float>& back,
                     const std::vector<float>& weights = {}) {
  double error = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double weight = weights.empty() ? 1 : weights[i % weights.size()], off = values[i] - back[i];
    error += weight * off * off;
    size += weight * values[i] * values[i];
  }
  return std::sqrt(error / size);
}

TEST(BlockRounding, PackedBlocksStandForTheNumbersThatTheirCodesSay) {
  for (const auto& [type, most] : kCases) {
    SCOPED_TRACE(Name(type));
    const BlockGrid& grid = *FindGrid(type);
    const std::vector<float> values = Normal(grid.elements() * kBlocks, 1), ones(grid.elements(), 1.0f);
    std::mt19937_64 random(2);
    for (int64_t b = 0; b < kBlocks; ++b) {
      RoundedBlock block;
      ASSERT_TRUE(ChooseScales(grid, values.data() + b * grid.elements(), ones.data(), block));
      for (int64_t i = 0; i < grid.elements(); ++i)
        block.codes[i] = static_cast<int8_t>(grid.low + static_cast<int>(random() % (grid.high - grid.low + 1)));
      std::vector<std::byte> bytes(static_cast<size_t>(LayoutOf(type).bytes));
      Pack(grid, block, bytes.data());
      std::vector<float> back(grid.elements());
      Widen(type, bytes.data(), grid.elements(), back.data());
      for (int64_t i = 0; i < grid.elements(); ++i)
        ASSERT_EQ(back[i], Decoded(grid, block, i, block.codes[i])) << "block " << b << ", element " << i;
    }
  }
}

TEST(BlockRounding, ErrorsAreThoseOfTheNumberOfBits) {
  for (const auto& [type, most] : kCases) {
    const std::vector<float> values = Normal(256 * kBlocks, 3);
    const Rounded rounded(type, values);
    ASSERT_TRUE(rounded.held);
    const double error = RelativeError(values, rounded.back);
    EXPECT_LT(error, most) << Name(type);
    EXPECT_GT(error, most / 2) << Name(type) << ": the limit above says little";
  }
}

// The neighbours of each code are no nearer, so the codes are right for the scales.
TEST(BlockRounding, EachCodeIsTheNearest) {
  for (const auto& [type, most] : kCases) {
    const BlockGrid& grid = *FindGrid(type);
    const std::vector<float> values = Normal(grid.elements(), 4), ones(grid.elements(), 1.0f);
    RoundedBlock block;
    ASSERT_TRUE(ChooseScales(grid, values.data(), ones.data(), block));
    for (int64_t i = 0; i < grid.elements(); ++i) {
      const int code = Nearest(grid, block, i, values[i]);
      ASSERT_GE(code, grid.low);
      ASSERT_LE(code, grid.high);
      const float off = std::abs(Decoded(grid, block, i, code) - values[i]);
      for (const int other : {std::max(code - 1, grid.low), std::min(code + 1, grid.high)})
        EXPECT_LE(off, std::abs(Decoded(grid, block, i, other) - values[i]) * 1.0001f) << Name(type) << " " << i;
    }
  }
}

TEST(BlockRounding, WeightsDecideWhichErrorsAreSmall) {
  std::vector<float> weights(256);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = i % 5 == 0 ? 100.0f : 0.01f;
  for (const DType type : {DType::kQ4_0, DType::kQ4_K, DType::kQ3_K, DType::kQ2_K}) {
    const std::vector<float> values = Normal(256 * kBlocks, 5);
    const Rounded plain(type, values), weighted(type, values, weights.data(), 256);
    EXPECT_LT(RelativeError(values, weighted.back, weights), 0.95 * RelativeError(values, plain.back, weights))
        << Name(type);
  }
}

TEST(BlockRounding, NumbersThatATypeHasStayNearlyAsTheyAre) {
  for (const auto& [type, most] : kCases) {
    const Rounded once(type, Normal(256 * kBlocks, 6));
    const Rounded twice(type, once.back);
    EXPECT_LT(RelativeError(once.back, twice.back), most / 3) << Name(type);
  }
}

TEST(BlockRounding, ZerosAndConstantsAreHeld) {
  for (const auto& [type, most] : kCases) {
    for (const float value : {0.0f, 0.03f, -0.03f, 1e-30f}) {
      const Rounded rounded(type, std::vector<float>(256, value));
      ASSERT_TRUE(rounded.held) << Name(type) << " " << value;
      for (const float back : rounded.back) ASSERT_NEAR(back, value, std::abs(value) * 0.02 + 1e-8) << Name(type);
    }
  }
}

TEST(BlockRounding, WhatCannotBeHeldIsSaid) {
  for (const auto& [type, most] : kCases) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
      std::vector<float> values = Normal(256, 7);
      values[100] = bad;
      EXPECT_FALSE(Rounded(type, values).held) << Name(type) << " " << bad;
    }
  }
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4})
    EXPECT_EQ(FindGrid(type), nullptr) << Name(type);
}

}  // namespace
}  // namespace shiftrt
