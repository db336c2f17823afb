// SPDX-License-Identifier: Apache-2.0
// Helpers of tests that compare decoders on a GPU with decoders on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/random.h"
#include "tests/cuda/models.h"
#include "tests/engine/rows.h"

namespace shiftrt {

inline std::vector<int32_t> Tokens(const Weights& weights, int64_t count) {
  Random random(5);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(weights.config.vocab));
  return tokens;
}

inline std::shared_ptr<const Lra> MakeAdapter(int64_t d, int64_t rank, bool normed = false) {
  Random random(static_cast<uint64_t>(rank + 1));
  const auto fill = [&](int64_t rows, int64_t cols) {
    Matrix<float> m(rows, cols);
    for (float& x : m.span()) x = static_cast<float>(0.2 * (random.Uniform() - 0.5));
    return m;
  };
  Lra lra = rank > 0 ? Lra{{}, fill(d, rank), fill(rank, d), fill(1, d)} : Lra{fill(d, d), {}, {}, fill(1, d)};
  if (normed) lra.norm = fill(1, d);
  return std::make_shared<const Lra>(std::move(lra));
}

// A plan with the first block replaced by an adapter of this rank; rank 0 means full rank.
inline DepthPlan Corrected(const Weights& weights, int64_t rank, bool normed = false) {
  const std::vector<int64_t> removed = {0};
  const std::vector<std::shared_ptr<const Lra>> adapters = {MakeAdapter(weights.config.hidden, rank, normed)};
  return DepthPlan::Corrected(weights.config.layers, removed, adapters);
}

inline std::vector<float> Copied(const Rows& rows) {
  const Matrix<float> here = test::Copied(rows);
  return {here.span().begin(), here.span().end()};
}

// |a - b| / |b|; infinite if there is a NaN.
inline double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  const double error = std::sqrt(difference / size);
  return std::isnan(error) ? HUGE_VAL : error;
}

// Activations on the CPU are float32 throughout. On the GPU, products of many rows take activations in the type of the
// weights, so the tolerance follows from that type. The activations of a single token are float32, except for the
// cached keys and values.
inline double ManyTolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 4e-3 : 3e-2;
}

// The same for what one half of a block computes. In a gated delta network, the products of random queries with keys
// cancel, and no softmax follows.
inline double HalfTolerance(const Weights& weights) {
  return ManyTolerance(weights.embedding.dtype) * (weights.config.block.gated_delta ? 2 : 1);
}

}  // namespace shiftrt
