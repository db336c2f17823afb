// SPDX-License-Identifier: Apache-2.0
// Tests buffers, views and the random number generator.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "runtime/random.h"
#include "runtime/tensor.h"

namespace shiftrt {
namespace {

TEST(Buffer, IsAlignedAtEverySize) {
  for (const int64_t size : {1, 15, 16, 17, (1 << 20) - 1, 1 << 20, (1 << 20) + 1}) {
    const Buffer<float> buffer(size);
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    EXPECT_EQ(address % (size >= 1 << 20 ? 2u << 20 : 64u), 0u) << size;
    EXPECT_EQ(buffer.size(), size);
    buffer[0] = buffer[size - 1] = 1;  // an access outside the buffer is found by the sanitizer
  }
  EXPECT_EQ(Buffer<float>(0).size(), 0);
}

TEST(Buffer, ReserveOnlyGrows) {
  Buffer<int> buffer(4);
  buffer[3] = 7;
  const int* data = buffer.data();
  buffer.Reserve(3);
  EXPECT_EQ(buffer.data(), data);
  EXPECT_EQ(buffer[3], 7);
  buffer.Reserve(5);
  EXPECT_EQ(buffer.size(), 5);
}

TEST(Matrix, ViewsCutRowsAndColumns) {
  Matrix<int> m(3, 4);
  for (int64_t i = 0; i < m.size(); ++i) m.data()[i] = static_cast<int>(i);
  const MatrixView<int> inner = m.view().Rows(1, 2).Cols(2, 2);
  EXPECT_EQ(inner(0, 0), 6);
  EXPECT_EQ(inner(1, 1), 11);
  EXPECT_EQ(inner.stride, 4);
  const Matrix<int> copy = m.Clone();
  m(1, 2) = 0;
  EXPECT_EQ(copy(1, 2), 6);
  EXPECT_EQ(inner(0, 0), 0);
  const Matrix<double> zeros = Matrix<double>::Zeros(2, 5);
  for (const double x : zeros.span()) EXPECT_EQ(x, 0);
  EXPECT_TRUE(Matrix<double>().empty());
}

TEST(TensorView, CountsElementsAndBytes) {
  EXPECT_EQ((TensorView{nullptr, DType::kBFloat16, {3, 5}}.bytes()), 30);
  EXPECT_EQ((TensorView{nullptr, DType::kFloat64, {}}.bytes()), 8);
  EXPECT_EQ((TensorView{nullptr, DType::kFloat32, {7, 0, 9}}.elements()), 0);
}

// The first numbers of the published generator (Steele, Lea, Flood 2014; seed 1234567).
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(Random, DistributionsHaveTheirMoments) {
  Random random(5);
  const int n = 100000;
  double uniform = 0, normal = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.Uniform(), z = random.Normal();
    ASSERT_TRUE(u >= 0 && u < 1 && std::isfinite(z));
    const int64_t below = random.Below(7);
    ASSERT_TRUE(below >= 0 && below < 7);
    uniform += u;
    normal += z;
    squares += z * z;
  }
  const double five_sigma = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(uniform / n, 0.5, five_sigma * std::sqrt(1.0 / 12));
  EXPECT_NEAR(normal / n, 0, five_sigma);
  EXPECT_NEAR(squares / n, 1, five_sigma * std::sqrt(2.0));
}

}  // namespace
}  // namespace shiftrt
