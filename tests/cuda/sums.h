// SPDX-License-Identifier: Apache-2.0
// The distance between calibration sums.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "shift/sums/statistics.h"

namespace shiftrt {

// Relative to the Frobenius norm of the expected sums; infinite if there is a NaN.
inline double Difference(const Matrix<double>& found, const Matrix<double>& expected) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(found.data()[i] - expected.data()[i], 2);
    size += std::pow(expected.data()[i], 2);
  }
  const double error = std::sqrt(difference / size);
  return std::isnan(error) ? HUGE_VAL : error;
}

inline void ExpectClose(const RidgeSums& found, const RidgeSums& expected, double tolerance) {
  EXPECT_EQ(found.tokens(), expected.tokens());
  EXPECT_LE(Difference(found.Gram(), expected.Gram()), tolerance);
  EXPECT_LE(Difference(found.Cross(), expected.Cross()), tolerance);
  EXPECT_NEAR(found.DeltaSquares(), expected.DeltaSquares(), tolerance * expected.DeltaSquares());
}

}  // namespace shiftrt
