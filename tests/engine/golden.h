// SPDX-License-Identifier: Apache-2.0
// The numbers that transformers computed for the goldens (tests/goldens/make_models.py), and what the tests of decoders
// share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "engine/decoder.h"
#include "runtime/random.h"
#include "tests/engine/rows.h"
#include "tests/models/fixtures.h"

namespace shiftrt::test {

// The largest absolute difference of two matrices of the same shape; infinite if one has a NaN.
inline double LargestDifference(MatrixView<const float> a, MatrixView<const float> b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.cols, b.cols);
  double worst = 0;
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) {
      const double difference = std::abs(static_cast<double>(a(i, j)) - b(i, j));
      worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
    }
  return worst;
}

// The tokens and the expected results of a golden.
class Golden {
 public:
  explicit Golden(const std::string& name) : file_(GoldenModel(name) / "golden.safetensors") {
    const auto tokens = (*this)["tokens"];
    for (int64_t i = 0; i < tokens.rows; ++i) tokens_.push_back(static_cast<int32_t>(tokens(i, 0)));
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  MatrixView<const float> operator[](const std::string& name) const {
    const TensorView& t = file_.tensors().at(name);
    return {static_cast<const float*>(t.data), t.rows(), t.cols()};
  }

 private:
  SafetensorsFile file_;
  std::vector<int32_t> tokens_;
};

inline Batch OneSequence(std::span<const int32_t> tokens) {
  Batch batch;
  batch.Add(tokens);
  return batch;
}

// An adapter with small random numbers; rank 0: a full map.
inline std::shared_ptr<const Lra> SmallAdapter(int64_t d, int64_t rank, uint64_t seed) {
  Random random(seed);
  const auto fill = [&](int64_t rows, int64_t cols) {
    Matrix<float> m(rows, cols);
    for (float& x : m.span()) x = static_cast<float>(0.1 * (random.Uniform() - 0.5));
    return m;
  };
  return std::make_shared<const Lra>(rank > 0 ? Lra{{}, fill(d, rank), fill(rank, d), fill(1, d)}
                                              : Lra{fill(d, d), {}, {}, fill(1, d)});
}

// The same on the normed stream.
inline std::shared_ptr<const Lra> NormedAdapter(int64_t hidden, int64_t rank) {
  const auto plain = SmallAdapter(hidden, rank, 7);
  Matrix<float> norm(1, hidden);
  for (int64_t i = 0; i < hidden; ++i) norm(0, i) = 1 + plain->b(0, i);
  return std::make_shared<const Lra>(
      Lra{plain->a.Clone(), plain->p.Clone(), plain->q.Clone(), plain->b.Clone(), std::move(norm)});
}

// Blocks 0 and 2 of three are replaced, one by factors and one by a full map.
inline DepthPlan CorrectedPlan(const Weights& weights) {
  const std::vector<int64_t> removed = {0, 2};
  const std::vector<std::shared_ptr<const Lra>> adapters = {SmallAdapter(weights.config.hidden, 4, 1),
                                                            SmallAdapter(weights.config.hidden, 0, 2)};
  return DepthPlan::Corrected(weights.config.layers, removed, adapters);
}

}  // namespace shiftrt::test
