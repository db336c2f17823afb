// SPDX-License-Identifier: Apache-2.0
// The rounding of operands to bfloat16 (tests/kernels/matmul_test.cc has the products).
#include "kernels/matmul.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Stored;

class RoundedProductTest : public test::OnEveryPrecision {};
SHIFTRT_ON_PRECISIONS(RoundedProductTest, test::RoundedPrecisions());

// Ties go to even. Numbers below 2^-126 count as 0 or as they are.
TEST_P(RoundedProductTest, RoundsToNearest) {
  const int64_t m = 40, n = 35, k = 70;
  Random random(3);
  Padded x(m, k);
  std::vector<double> w(n * k);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < k; ++j)
      x(i, j) = std::ldexp(1 + static_cast<float>(random.Below(512)) / 512, static_cast<int>(random.Below(40)) - 20);
  for (double& value : w) value = 1 + static_cast<double>(random.Below(512)) / 512;
  const Stored exact(DType::kFloat32, {n, k}, w);
  w = test::Nearest(w, DType::kBFloat16);
  const Stored rounded(DType::kFloat32, {n, k}, w), stored(DType::kBFloat16, {n, k}, w);
  const Padded nearest = Padded::Of(m, k, test::Nearest(x.Values(), DType::kBFloat16));
  const Padded a(m, n), b(m, n), c(m, n);
  MatMul(context_, x.view(), exact.view, {}, false, a.view());
  MatMul(context_, nearest.view(), rounded.view, {}, false, b.view());
  MatMul(context_, nearest.view(), stored.view, {}, false, c.view());
  EXPECT_TRUE(test::Identical(a, b));
  EXPECT_TRUE(test::Identical(a, c));
}

// Up to four rows read the weights once for all of them, in float32.
TEST_P(RoundedProductTest, OfFewRowsAreInFloat32) {
  const Padded x = Padded::Normal(4, 70, 1), rounded(4, 33), plain(4, 33);
  const Stored w = Stored::Normal(DType::kFloat32, {33, 70}, 2);
  MatMul(context_, x.view(), w.view, {}, false, rounded.view());
  MatMul({1, GetParam().isa}, x.view(), w.view, {}, false, plain.view());
  EXPECT_TRUE(test::Identical(rounded, plain));
}

}  // namespace
}  // namespace shiftrt
