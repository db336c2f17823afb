// SPDX-License-Identifier: Apache-2.0
// Products with weights in quantised blocks.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd_body.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/quantised_cases.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Quantised;

constexpr DType kTypes[] = {DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                            DType::kQ2_K,   DType::kQ3_K,   DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                            DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};

class QuantisedProductTest : public test::OnEveryPrecision {
 protected:
  // Says whether rounded products of many rows have activations of 8 bits.
  bool RoundsToBytes() const { return rounded() && context_.isa == Isa::kAvx512BFloat16; }
};
SHIFTRT_ON_PRECISIONS(QuantisedProductTest, test::Precisions());

TEST_P(QuantisedProductTest, ConvertsAsTheFormatSays) {
  const SimdBody& body = BodyFor(context_.isa);
  for (const DType type : kTypes) {
    const int64_t cols = 768;
    const Quantised w(type, 3, cols, 5);
    for (int64_t first = 0; first < cols; first += 32) {
      for (const int64_t count : {int64_t{32}, int64_t{288}, cols - first}) {
        if (first + count > cols) continue;
        std::vector<float> out(count + 1, test::kNan);
        body.dequantise(static_cast<const std::byte*>(w.view.data) + 2 * BytesOf(type, cols), type, first, count,
                        out.data());
        EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, w.values.begin() + 2 * cols + first))
            << Name(type) << " from " << first << ", " << count;
        EXPECT_TRUE(std::isnan(out.back()));
      }
    }
  }
}

// Products of few rows and of many, of several types, together.
TEST_P(QuantisedProductTest, SeveralTogetherHaveTheBitsOfEachAlone) {
  const int64_t k = 512, n = 70;
  const Quantised q4(DType::kQ4_K, n, k, 1), q8(DType::kQ8_0, n, k, 2);
  const test::Stored half = test::Stored::Normal(DType::kBFloat16, {n, k}, 3);
  const TensorView* const weights[] = {&q4.view, &half.view, &q8.view};
  const test::Stored bias = test::Stored::Normal(DType::kBFloat16, {n}, 4);
  const TensorView none, *const biases[] = {&bias.view, &none, nullptr};
  std::vector<Padded> xs, together, alone;
  std::vector<MatMulItem> items;
  for (const int64_t m : {1, 0, 3, 9, 1, 30})
    for (size_t w = 0; w < std::size(weights); ++w) {
      xs.push_back(Padded::Normal(m, k, 10 * static_cast<uint64_t>(m) + w));
      for (std::vector<Padded>* results : {&together, &alone}) results->push_back(Padded::Normal(m, n, 9));
    }
  for (size_t i = 0; i < xs.size(); ++i) {
    const TensorView* const of_item = biases[i % 5 % 3];
    items.push_back({xs[i].view(), weights[i % 3], together[i].view(), of_item});
    MatMul(context_, xs[i].view(), *weights[i % 3], of_item != nullptr ? *of_item : none, false, alone[i].view());
  }
  MatMulEach(On(3), items);
  for (size_t i = 0; i < xs.size(); ++i)
    for (int64_t row = 0; row < xs[i].view().rows; ++row)
      EXPECT_EQ(std::memcmp(together[i].view().row(row), alone[i].view().row(row), n * sizeof(float)), 0) << i;
}

// Vectors of 512 bits hold two groups, those of other instruction sets one.
TEST(QuantisedRows, PairsOfGroupsHaveTheBitsOfSingleGroups) {
  if (BestIsa() < Isa::kAvx512BFloat16) GTEST_SKIP() << "this CPU has no AVX512-BF16";
  const IntegerProduct& groups = BodyFor(Isa::kAvx512).quantised_rows;
  for (const DType type : kTypes) {
    for (const int64_t k : {LayoutOf(type).elements, int64_t{768}, 32 * LayoutOf(type).elements + 256}) {
      const int64_t n = 19, most = 6;
      const Quantised w(type, n, k, 3);
      const Padded x = Padded::Normal(most, k, 4);
      Buffer<std::byte> prepared(most * groups.prepared_bytes(k));
      for (int64_t i = 0; i < most; ++i)
        groups.prepare(x.view().row(i), k, prepared.data() + i * groups.prepared_bytes(k));
      for (int64_t m = 1; m <= most; ++m) {
        std::vector<float> single(m * n, test::kNan), pairs(m * n, test::kNan);
        groups.multiply(prepared.data(), m, w.view.data, type, k, 0, n, nullptr, false, single.data(), n);
        kAvx512IntegerRows.multiply(prepared.data(), m, w.view.data, type, k, 0, n, nullptr, false, pairs.data(), n);
        EXPECT_EQ(single, pairs) << Name(type) << " " << m << " x " << k;
      }
    }
  }
}

// Elements of x of very different sizes stand in the same group of 32, so that rounding them to 16 bits shows.
TEST_P(QuantisedProductTest, AgreesWithFloat64) {
  uint64_t seed = 1;
  for (const DType type : kTypes) {
    const bool small = LayoutOf(type).elements == 32;
    for (const int64_t k : {small ? int64_t{32} : int64_t{256}, small ? int64_t{288} : int64_t{1280}}) {
      for (const int64_t m : {1, 2, 3, 4, 5, 8, 9, 15, 24, 25, 40}) {
        SCOPED_TRACE(fmt::format("{} ({}, {})", Name(type), m, k));
        const int64_t n = 37;
        const Quantised w(type, n, k, ++seed);
        const Padded x = Padded::Normal(m, k, ++seed), before = Padded::Normal(m, n, ++seed);
        for (int64_t i = 0; i < m; ++i) x(i, 7 * i % k) *= 1000;
        const test::Stored bias = test::Stored::Normal(DType::kFloat16, {n}, ++seed);
        const bool blocked = context_.isa >= Isa::kAvx512BFloat16, rounds = rounded() && m > 24;
        // An integer of 16 or 8 bits errs by half a unit, of which `largest` has so many.
        const double integers = m <= 8 || (blocked && !rounds) ? 0x1p-16 : rounds && RoundsToBytes() ? 1.01 / 254 : 0;
        for (const bool accumulate : {false, true}) {
          const Padded y = before.Copy(), threaded = before.Copy();
          MatMul(context_, x.view(), w.view, bias.view, accumulate, y.view());
          MatMul(On(3), x.view(), w.view, bias.view, accumulate, threaded.view());
          EXPECT_TRUE(test::Identical(y, threaded));
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double exact = bias.values[j] + (accumulate ? before(i, j) : 0), allowed = 1e-6 * std::abs(exact);
              for (int64_t g = 0; g < k; g += 32) {
                double largest = 0;
                for (int64_t c = g; c < g + 32; ++c) largest = std::max(largest, std::abs(double{x(i, c)}));
                for (int64_t c = g; c < g + 32; ++c) {
                  const double weight = w.values[j * k + c], product = weight * x(i, c);
                  exact += product;
                  allowed += 2e-6 * std::abs(product) + integers * largest * std::abs(weight);
                  if (rounds && integers == 0) allowed += 0x1p-7 * std::abs(product);
                }
              }
              ASSERT_NEAR(y(i, j), exact, allowed) << i << " " << j;
            }
          }
        }
        // The gradient of the input: dx = dy W.
        const Padded dy = Padded::Normal(m, n, ++seed), dx(m, k);
        MatMulInputGradient(context_, dy.view(), w.view, false, dx.view());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t c = 0; c < k; ++c) {
            double exact = 0, size = 0;
            for (int64_t j = 0; j < n; ++j) {
              exact += double{dy(i, j)} * w.values[j * k + c];
              size += std::abs(double{dy(i, j)} * w.values[j * k + c]);
            }
            ASSERT_NEAR(dx(i, c), exact, (rounded() ? 0x1p-7 : 2e-6) * size) << i << " " << c;
          }
        }
      }
    }
  }
}

// The rounding to 16 bits is much finer than the 8 bits that llama.cpp rounds activations to.
TEST_P(QuantisedProductTest, RoundsActivationsToSixteenBits) {
  const int64_t k = 1536, n = 64;
  const Quantised w(DType::kQ4_K, n, k, 3);
  const Padded x = Padded::Normal(1, k, 4), y(1, n);
  MatMul(context_, x.view(), w.view, {}, false, y.view());
  double error = 0, size = 0;
  for (int64_t j = 0; j < n; ++j) {
    double exact = 0;
    for (int64_t c = 0; c < k; ++c) exact += double{w.values[j * k + c]} * x(0, c);
    error += (y(0, j) - exact) * (y(0, j) - exact);
    size += exact * exact;
  }
  EXPECT_LT(std::sqrt(error / size), 5e-5);
}

// Rounded to 8 bits, the 32 elements of a group share a unit. llama.cpp's have one for 256 elements of Q4_K.
TEST_P(QuantisedProductTest, RoundedActivationsErrLessThanThoseOfLlamaCpp) {
  if (!RoundsToBytes()) GTEST_SKIP() << "activations have more bits here";
  const int64_t k = 1536, n = 64, m = 40;
  const Quantised w(DType::kQ4_K, n, k, 3);
  const Padded x = Padded::Normal(m, k, 4), y(m, n);
  MatMul(context_, x.view(), w.view, {}, false, y.view());
  double error = 0, theirs = 0, size = 0;
  for (int64_t i = 0; i < m; ++i) {
    std::vector<double> rounded(k);
    for (int64_t first = 0; first < k; first += 256) {
      double largest = 0;
      for (int64_t c = first; c < first + 256; ++c) largest = std::max(largest, std::abs(double{x(i, c)}));
      for (int64_t c = first; c < first + 256; ++c) rounded[c] = std::round(x(i, c) * 127 / largest) * largest / 127;
    }
    for (int64_t j = 0; j < n; ++j) {
      double exact = 0, other = 0;
      for (int64_t c = 0; c < k; ++c) {
        exact += double{w.values[j * k + c]} * x(i, c);
        other += double{w.values[j * k + c]} * rounded[c];
      }
      error += (y(i, j) - exact) * (y(i, j) - exact);
      theirs += (other - exact) * (other - exact);
      size += exact * exact;
    }
  }
  EXPECT_LT(error, 0.8 * theirs);
  EXPECT_LT(std::sqrt(error / size), 6e-3);
  EXPECT_GT(std::sqrt(error / size), 1e-3);  // fewer bits than the other products have
}

TEST_P(QuantisedProductTest, KeepsWhatIsNotFinite) {
  for (const DType type : {DType::kQ4_0, DType::kQ6_K}) {
    const int64_t k = 512, n = 8;
    const Quantised w(type, n, k, 3);
    for (const int64_t m : {1, 40}) {
      for (const float bad : {test::kNan, std::numeric_limits<float>::infinity()}) {
        const Padded x = Padded::Normal(m, k, 4), y(m, n);
        x(0, 300) = bad;
        MatMul(context_, x.view(), w.view, {}, false, y.view());
        for (int64_t j = 0; j < n; ++j) EXPECT_FALSE(std::isfinite(y(0, j))) << Name(type);
        for (int64_t i = 1; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) EXPECT_TRUE(std::isfinite(y(i, j))) << Name(type) << " " << i;
      }
      const Padded zero = Padded::Of(m, k, std::vector<double>(m * k)), y(m, n);
      MatMul(context_, zero.view(), w.view, {}, false, y.view());
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) EXPECT_EQ(y(i, j), 0) << Name(type);
    }
  }
}

TEST_P(QuantisedProductTest, EmbedsRows) {
  for (const DType type : kTypes) {
    const Quantised table(type, 5, 256, 9);
    const Padded out(3, 256);
    const int32_t tokens[] = {4, 0, 2};
    Embed(context_, tokens, table.view, out.view(), 2);
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t j = 0; j < 256; ++j) EXPECT_EQ(out(t, j), 2 * table.values[tokens[t] * 256 + j]) << Name(type);
  }
}

}  // namespace
}  // namespace shiftrt
