// SPDX-License-Identifier: Apache-2.0
// The parts that the tests of an operation share on every device: inputs, exact results, and the errors that they may
// have. The cases of an operation stand in a header *_cases.h, with one float64 reference. Its tests on the CPU, once
// per instruction set, and on a GPU, emulated or real, run these cases.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/random.h"

namespace shiftrt::test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kUnit = 0x1p-24;  // half the float32 epsilon: the relative error of one rounding

// Half the distance from 1 to the next number of the type: the relative error of one rounding.
constexpr double UnitOf(DType type) {
  return type == DType::kFloat32 ? kUnit : type == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}

// The bound on |computed - exact| for a float32 sum of `terms` products whose absolute values add up to `size`. The
// order is arbitrary and products may be fused. Every term has at most `terms` + 1 roundings (Higham 2002,
// section 3.1).
inline double SumTolerance(int64_t terms, double size) {
  return 1.01 * static_cast<double>(terms + 1) * kUnit * size + std::numeric_limits<float>::denorm_min();
}

// An exact value, and the sum of the absolute values of its terms, to which its error is relative.
struct Exact {
  double value = 0, size = 0;

  void Add(double term) {
    value += term;
    size += std::abs(term);
  }
};

// The nearest number of the type, of one that is rounded to float32 first.
inline double Nearest(double x, DType type) {
  const auto value = static_cast<float>(x);
  return type == DType::kFloat16    ? static_cast<float>(Float16(value))
         : type == DType::kBFloat16 ? static_cast<float>(BFloat16(value))
                                    : value;
}
inline std::vector<double> Nearest(std::vector<double> values, DType type) {
  for (double& x : values) x = Nearest(x, type);
  return values;
}

// Normal numbers as a tensor of this type holds them.
inline std::vector<double> Drawn(int64_t count, uint64_t seed, double scale = 1, DType type = DType::kFloat32) {
  Random random(seed);
  std::vector<double> drawn(count);
  for (double& x : drawn) x = Nearest(scale * random.Normal(), type);
  return drawn;
}

inline std::vector<double> Transposed(const std::vector<double>& w, int64_t rows, int64_t cols) {
  std::vector<double> out(w.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = w[i * cols + j];
  return out;
}

// The largest |found - expected| / tolerance of the running test, which goes into the report of a run on a GPU.
inline double worst_share = 0;

inline testing::AssertionResult Close(double found, double expected, double tolerance, int64_t where) {
  const double error = std::abs(found - expected);
  if (error > 0 && tolerance > 0) worst_share = std::max(worst_share, error / tolerance);
  if (error <= tolerance) return testing::AssertionSuccess();  // false for NaN
  return testing::AssertionFailure() << "at " << where << ": " << found << ", not " << expected << " within "
                                     << tolerance;
}
#define EXPECT_CLOSE(found, expected, tolerance, where) \
  ASSERT_TRUE(::shiftrt::test::Close(found, expected, tolerance, where))

// The error that an implementation may have: so many roundings to float32 relative to the size of a result, one
// rounding of the result if its type is not float32, and what is lost below the smallest normal number.
struct Allowed {
  double roundings = 0;
  DType result = DType::kFloat32;
  double least = 1e-30;
};

// The error that a float32 sum of `terms` products may have (SumTolerance).
inline Allowed AllowedForSum(int64_t terms) { return {1.01 * static_cast<double>(terms + 1)}; }

inline void ExpectClose(const char* name, const std::vector<double>& found, const std::vector<Exact>& expected,
                        const Allowed& allowed) {
  SCOPED_TRACE(name);
  ASSERT_EQ(found.size(), expected.size());
  const double rounded = allowed.result == DType::kFloat32 ? 0 : 1.01 * UnitOf(allowed.result);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_CLOSE(found[i], expected[i].value,
                 allowed.roundings * kUnit * expected[i].size + rounded * std::abs(expected[i].value) + allowed.least,
                 static_cast<int64_t>(i));
}

}  // namespace shiftrt::test
