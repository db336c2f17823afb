// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "tests/kernels/fused_product_cases.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/product_cases.h"
#include "tests/kernels/row_cases.h"

namespace shiftrt {
namespace {

using test::Epilogue;
using test::Exact;
using test::FusedProductCase;
using test::FusedProductProblem;
using test::Padded;
using test::ProductProblem;
using test::ProductShape;
using test::Stored;
using test::SumTolerance;
using test::Transposed;

class ProductTest : public test::OnEveryPrecision {};
SHIFTRT_ON_PRECISIONS(ProductTest, test::Precisions());
class MatMulTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(MatMulTest);

// The product with a weight matrix, with a matrix as it is stored, and those of both gradients.
TEST_P(ProductTest, AgreesWithFloat64) {
  int turn = 0;
  for (const DType dtype : test::kStoredTypes) {
    for (const ProductShape& shape : test::ProductShapes()) {
      if (rounded() && shape.m <= 4) continue;  // few rows are multiplied in float32, but not in all of these products
      SCOPED_TRACE(fmt::format("{} {}", Name(dtype), shape.Name()));
      const auto& [m, n, k] = shape;
      const ProductProblem p(shape, dtype, Multiplied(m));
      const Padded x = Padded::Of(m, k, p.x), turned_x = Padded::Of(k, m, Transposed(p.x, m, k)),
                   b = Padded::Of(k, n, p.b), before = Padded::Of(m, n, p.before);
      const Stored w(dtype, {n, k}, Transposed(p.b, k, n)), turned_w(dtype, {k, n}, p.b),
          bias(test::kStoredTypes[k % 3], {n}, p.bias);
      const Context many = On(2 + turn++ % 3);
      // Calls product(context, y) with y as it is before the product.
      const auto expect = [&](const char* name, bool accumulate, const std::vector<double>& added, auto&& product) {
        Padded y = accumulate ? before.Copy() : Padded(m, n);
        product(context_, y.view());
        test::ExpectClose(name, y.Values(), p.Exactly(accumulate, added), test::AllowedForSum(k + 2));
        if (accumulate) {
          const Padded threaded = before.Copy();
          product(many, threaded.view());
          EXPECT_TRUE(test::Identical(y, threaded)) << name << ", " << many.threads << " threads";
        }
        return y;
      };
      for (const bool accumulate : {false, true}) {
        expect("product", accumulate, {}, [&](const Context& context, MatrixView<float> y) {
          MatMul(context, x.view(), w.view, {}, accumulate, y);
        });
        expect("product and bias", accumulate, bias.values, [&](const Context& context, MatrixView<float> y) {
          MatMul(context, x.view(), w.view, bias.view, accumulate, y);
        });
        const Padded gradient =
            expect("gradient of the input", accumulate, {}, [&](const Context& context, MatrixView<float> y) {
              MatMulInputGradient(context, x.view(), turned_w.view, accumulate, y);
            });
        if (dtype != DType::kFloat32) continue;
        const Padded right =
            expect("product from the right", accumulate, {}, [&](const Context& context, MatrixView<float> y) {
              MatMulRight(context, x.view(), b.view(), accumulate, y);
            });
        if (rounded()) {
          EXPECT_TRUE(test::Identical(gradient, right));
        }
      }
      if (dtype == DType::kFloat32)
        expect("gradient of the weights", true, {}, [&](const Context& context, MatrixView<float> y) {
          MatMulWeightGradient(context, turned_x.view(), b.view(), y);
        });
      if (HasFailure()) return;
    }
  }
}

// One step after the other. The norm has at most eight roundings.
TEST_P(MatMulTest, WithTheStepsAroundItAgreesWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const FusedProductCase& c : test::FusedProductCases()) {
      const FusedProductProblem p(c, dtype);
      const Stored w(dtype, {c.rows, c.cols}, p.w), norm(DType::kFloat32, {c.cols}, p.norm),
          bias(DType::kFloat32, {c.rows}, p.bias);
      const Padded x = Padded::Of(c.tokens, c.cols, p.x);
      const bool added = c.epilogue == Epilogue::kAddition;
      const Padded y = added ? Padded::Of(c.tokens, c.rows, p.before) : Padded(c.tokens, c.rows);
      if (c.normed) RmsNorm(context_, x.view(), norm.view, FusedProductProblem::kEps, x.view());
      MatMul(context_, x.view(), w.view, c.biased ? bias.view : TensorView(), added, y.view());
      const MatrixView<float> gate = y.view().Cols(0, c.outputs()),
                              up = y.view().Cols(c.rows - c.outputs(), c.outputs());
      if (c.epilogue == Epilogue::kSilu) GatedUnit(context_, Activation::kSilu, gate, up);
      if (c.epilogue == Epilogue::kGeluTanh) GatedUnit(context_, Activation::kGeluTanh, gate, up);
      EXPECT_TRUE(y.PaddingIsUntouched());
      std::vector<double> found;
      for (int64_t t = 0; t < c.tokens; ++t) found.insert(found.end(), gate.row(t), gate.row(t) + c.outputs());
      p.Expect(found, test::AllowedForSum(c.cols + 2).roundings + (c.normed ? 8 : 0));
      if (HasFailure()) return;
    }
  }
}

TEST_P(MatMulTest, ThreadsDoNotChangeABit) {
  for (const auto& [m, n, k] : {ProductShape{1, 300, 257},
                                {3, 257, 300},
                                {4, 33, 7},
                                {5, 300, 257},
                                {13, 65, 300},
                                {33, 97, 600},
                                {64, 257, 300},
                                {770, 67, 257}}) {
    SCOPED_TRACE(fmt::format("m {} n {} k {}", m, n, k));
    const Padded x = Padded::Normal(m, k, 1), before = Padded::Normal(m, n, 4), one = before.Copy(), right(m, n);
    const Stored w = Stored::Normal(DType::kBFloat16, {n, k}, 2), bias = Stored::Normal(DType::kFloat32, {n}, 3);
    const Padded b = Padded::Normal(k, n, 5);
    MatMul(On(1), x.view(), w.view, bias.view, true, one.view());
    MatMulRight(On(1), x.view(), b.view(), false, right.view());
    for (const int threads : {2, 3, 4}) {
      const Padded many = before.Copy(), many_right(m, n);
      MatMul(On(threads), x.view(), w.view, bias.view, true, many.view());
      EXPECT_TRUE(test::Identical(one, many)) << threads;
      MatMulRight(On(threads), x.view(), b.view(), false, many_right.view());
      EXPECT_TRUE(test::Identical(right, many_right)) << threads;
    }
  }
}

// A sequence's results must not depend on what else is in its batch.
TEST_P(ProductTest, TheOtherRowsDoNotChangeABit) {
  const int64_t n = 70, k = 600;
  for (const DType dtype : test::kStoredTypes) {
    const Padded x = Padded::Normal(300, k, 1), before = Padded::Normal(300, n, 4), all = before.Copy();
    const Stored w = Stored::Normal(dtype, {n, k}, 2);
    MatMul(context_, x.view(), w.view, {}, true, all.view());
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 5}, {3, 16}, {7, 17}, {250, 33}, {290, 10}}) {
      const Padded some = before.Copy();
      MatMul(context_, x.view().Rows(first, rows), w.view, {}, true, some.view().Rows(first, rows));
      for (int64_t i = first; i < first + rows; ++i)
        for (int64_t j = 0; j < n; ++j) ASSERT_EQ(some(i, j), all(i, j)) << Name(dtype) << " " << first << " " << rows;
    }
  }
}

// The root mean square error over long sums, next to that of the portable kernel, whose products are in float32.
TEST_P(MatMulTest, ErrorsAreThoseOfFloat32) {
  const int64_t m = 40, n = 48, k = 1536;
  const auto error = [&](const Context& context, const Padded& x, const Stored& w, const std::vector<Exact>& products) {
    const Padded y(m, n);
    MatMul(context, x.view(), w.view, {}, false, y.view());
    double squares = 0;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const Exact& exact = products[i * n + j];
        squares += std::pow((y(i, j) - exact.value) / exact.size, 2);
      }
    return std::sqrt(squares / static_cast<double>(m * n));
  };
  for (const DType dtype : test::kStoredTypes) {
    for (const bool wide_range : {false, true}) {
      Padded x = Padded::Normal(m, k, 1);
      for (int64_t i = 0; wide_range && i < m; ++i)  // magnitudes from 2^-20 to 2^20 in every row
        for (int64_t j = 0; j < k; ++j) x(i, j) = std::ldexp(x(i, j), static_cast<int>(j % 41) - 20);
      const Stored w = Stored::Normal(dtype, {n, k}, 2);
      const std::vector<Exact> products = test::Product({m, n, k}, x.Values(), Transposed(w.values, n, k));
      const double portable = error({1, Isa::kPortable}, x, w, products), here = error(context_, x, w, products);
      EXPECT_LE(here, 1.2 * portable) << Name(dtype) << (wide_range ? " wide range" : "");
      RecordProperty(fmt::format("{}{}", Name(dtype), wide_range ? "_wide" : ""), fmt::format("{:.3g}", here));
    }
  }
}

// With AMX, infinity times a number of which one part is 0 is NaN, and so it is where operands are rounded.
TEST_P(ProductTest, ValuesThatAreNotFiniteStayInTheirRowsAndColumns) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : test::kStoredTypes) {
    const int64_t m = 20, n = 35, k = 70;
    const bool may_be_nan = rounded() || (context_.isa == Isa::kAmx && dtype == DType::kFloat16);
    Padded x = Padded::Normal(m, k, 1);
    Stored w = Stored::Normal(dtype, {n, k}, 2);
    std::vector<double> values = w.values;
    const Padded plain(m, n), y(m, n);
    MatMul(context_, x.view(), w.view, {}, false, plain.view());
    x(3, 5) = infinity;
    x(4, 69) = -infinity;
    x(5, 33) = test::kNan;
    x(6, 0) = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is that of infinity
    x(7, 0) = std::bit_cast<float>(0x7fffffffu);
    values[8 * k + 2] = infinity;
    w = Stored(dtype, {n, k}, values);
    MatMul(context_, x.view(), w.view, {}, false, y.view());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        SCOPED_TRACE(fmt::format("{} at {}, {}", Name(dtype), i, j));
        if (i >= 5 && i <= 7) {
          ASSERT_TRUE(std::isnan(y(i, j)));
        } else if (j == 8 || (may_be_nan && (i == 3 || i == 4))) {
          ASSERT_FALSE(std::isfinite(y(i, j)));
        } else if (i == 3 || i == 4) {
          ASSERT_EQ(y(i, j), (i == 3) == (w.values[j * k + (i == 3 ? 5 : 69)] > 0) ? infinity : -infinity);
        } else {
          ASSERT_EQ(y(i, j), plain(i, j));
        }
      }
    }
  }
}

TEST_P(MatMulTest, TheEndsOfTheRange) {
  const int64_t m = 6, n = 3, k = 40;
  const float largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::min();
  for (const DType dtype : test::kStoredTypes) {
    const Stored w(dtype, {n, k}, std::vector<double>(n * k, 0x1p-6));
    Padded x(m, k);
    const float rows[] = {largest,         -largest,     std::nextafter(largest, 0.0f),
                          smallest * 3.3f, smallest / 3, 0x1.fffffep-1f};
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < k; ++j) x(i, j) = rows[i];
    const Padded y(m, n);
    MatMul(context_, x.view(), w.view, {}, false, y.view());
    for (int64_t i = 0; i < m; ++i) {
      const double exact = static_cast<double>(k) * rows[i] * 0x1p-6;
      // AMX counts subnormal numbers as 0: terms and parts of terms below 2^-126.
      const double lost = k * (context_.isa == Isa::kAmx ? 0x1p-126 : 0x1p-149);
      for (int64_t j = 0; j < n; ++j)
        ASSERT_NEAR(y(i, j), exact, SumTolerance(k, std::abs(exact)) + lost) << Name(dtype) << " " << i;
    }
  }
}

// Every finite 16-bit pattern, including subnormals, selected by the rows of the identity matrix. AMX counts subnormal
// bfloat16 numbers as 0.
TEST_P(MatMulTest, SixteenBitWeightsAreWidenedExactly) {
  constexpr int64_t kDepth = 64, kRows = 65536 / kDepth;
  Padded identity(kDepth, kDepth);
  for (int64_t i = 0; i < kDepth; ++i)
    for (int64_t j = 0; j < kDepth; ++j) identity(i, j) = i == j ? 1.0f : 0.0f;
  const auto expected = [&](float weight, int64_t m) {
    return context_.isa == Isa::kAmx && m > 4 && std::abs(weight) < std::numeric_limits<float>::min() ? 0 : weight;
  };
  const auto check = [&](DType dtype, const std::vector<float>& wide, const void* stored) {
    for (const int64_t m : {int64_t{4}, kDepth}) {
      const Padded y(kDepth, kRows);
      for (int64_t at = 0; at < kDepth; at += m)
        MatMul(context_, identity.view().Rows(at, m), {stored, dtype, {kRows, kDepth}}, {}, false,
               y.view().Rows(at, m));
      for (int64_t i = 0; i < kDepth; ++i)
        for (int64_t j = 0; j < kRows; ++j)
          ASSERT_EQ(y(i, j), expected(wide[j * kDepth + i], m)) << Name(dtype) << " " << m;
    }
  };
  const auto all_finite = [&](auto type) {
    using T = decltype(type);
    std::vector<T> stored(kRows * kDepth);
    std::vector<float> wide(stored.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      stored[i].bits = static_cast<uint16_t>(i);
      if (!std::isfinite(static_cast<float>(stored[i]))) stored[i].bits = 0;
      wide[i] = static_cast<float>(stored[i]);
    }
    check(DTypeOf<T>::value, wide, stored.data());
  };
  all_finite(Float16());
  all_finite(BFloat16());
}

TEST_P(MatMulTest, NothingToSumGivesTheBias) {
  const Stored bias = Stored::Normal(DType::kFloat32, {9}, 3);
  for (const int64_t m : {1, 6}) {
    const Padded x(m, 0), y(m, 9);
    const float nothing = 0;
    MatMul(context_, x.view(), {&nothing, DType::kFloat32, {9, 0}}, bias.view, false, y.view());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < 9; ++j) ASSERT_EQ(y(i, j), bias.values[j]);
  }
  const Stored w = Stored::Normal(DType::kFloat32, {9, 4}, 2);
  MatMul(context_, Padded(0, 4).view(), w.view, bias.view, false, Padded(0, 9).view());
  MatMulInputGradient(context_, Padded(0, 9).view(), w.view, false, Padded(0, 4).view());
}

TEST_P(MatMulTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 4, 1), y(2, 3), b = Padded::Normal(4, 3, 2);
  const Stored w = Stored::Normal(DType::kFloat32, {3, 4}, 2), flat = Stored::Normal(DType::kFloat32, {12}, 2),
               wide = Stored::Normal(DType::kFloat64, {3, 4}, 2), bias = Stored::Normal(DType::kFloat32, {4}, 2);
  EXPECT_NO_THROW(MatMul(context_, x.view(), w.view, {}, false, y.view()));
  EXPECT_THROW(MatMul(context_, x.view(), flat.view, {}, false, y.view()), Error);
  EXPECT_THROW(MatMul(context_, x.view(), wide.view, {}, false, y.view()), Error);
  EXPECT_THROW(MatMul(context_, x.view(), w.view, bias.view, false, y.view()), Error);
  EXPECT_THROW(MatMul(context_, x.view().Cols(0, 3), w.view, {}, false, y.view()), Error);
  EXPECT_THROW(MatMul(context_, x.view().Rows(0, 1), w.view, {}, false, y.view()), Error);
  EXPECT_THROW(MatMul(context_, x.view(), w.view, {}, false, y.view().Cols(0, 2)), Error);
  EXPECT_NO_THROW(MatMulRight(context_, x.view(), b.view(), false, y.view()));
  EXPECT_THROW(MatMulRight(context_, x.view(), x.view(), false, y.view()), Error);
  EXPECT_THROW(MatMulRight(context_, x.view(), b.view(), false, y.view().Cols(0, 2)), Error);
  EXPECT_THROW(MatMulRight(context_, x.view(), b.view(), false, y.view().Rows(0, 1)), Error);
}

// The same weights as columns and as rows are packed to the same panels, and so give the same bits. Infinite values and
// those that are not numbers are among them.
TEST_P(MatMulTest, InputGradientHasTheBitsOfTheTransposedProduct) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : test::kStoredTypes) {
    for (const auto& [m, n, k] : {ProductShape{6, 31, 33}, {40, 65, 593}, {17, 300, 64}}) {
      const Padded dy = Padded::Normal(m, k, 1), forward(m, n), backward(m, n);
      std::vector<double> values = Stored::Normal(dtype, {k, n}, 2).values;
      values[3] = infinity;
      values[n + 7] = 1e-3;
      values[2 * n + 9] = 65504;
      const Stored w(dtype, {k, n}, values), turned(dtype, {n, k}, Transposed(values, k, n));
      MatMul(context_, dy.view(), turned.view, {}, false, forward.view());
      MatMulInputGradient(context_, dy.view(), w.view, false, backward.view());
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          ASSERT_TRUE(forward(i, j) == backward(i, j) || (std::isnan(forward(i, j)) && std::isnan(backward(i, j))))
              << Name(dtype) << " at " << i << ", " << j << ": " << forward(i, j) << " " << backward(i, j);
    }
  }
}

// Small results take another algorithm than large ones on AMX. The root mean square error of both is that of float32.
TEST_P(MatMulTest, ErrorsOfWeightGradientsAreThoseOfFloat32) {
  const int64_t m = 1536, k = 40;
  for (const int64_t n : {24, 130}) {
    const ProductProblem p({n, k, m});
    const Padded dy = Padded::Of(m, n, Transposed(p.x, n, m)), x = Padded::Of(m, k, p.b);
    const auto error = [&](const Context& context) {
      const Padded dw(n, k);
      for (int64_t i = 0; i < n; ++i) std::fill_n(dw.view().row(i), k, 0.0f);
      MatMulWeightGradient(context, dy.view(), x.view(), dw.view());
      double squares = 0;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < k; ++j)
          squares += std::pow((dw(i, j) - p.products[i * k + j].value) / p.products[i * k + j].size, 2);
      return std::sqrt(squares / static_cast<double>(n * k));
    };
    EXPECT_LE(error(context_), 1.2 * error({1, Isa::kPortable})) << n;
  }
}

TEST_P(MatMulTest, BiasGradientAddsTheRows) {
  for (const test::RowsCase& c : test::ColumnSumsCases()) {
    const test::RowsProblem problem(c);
    const Padded dy = Padded::Of(c.rows, c.cols, problem.x, c.gap), db = Padded::Of(1, c.cols, problem.row),
                 threaded = db.Copy();
    BiasGradient(context_, dy.view(), db.view());
    BiasGradient(On(3), dy.view(), threaded.view());
    problem.ExpectColumnSums(db.Values(), std::min<int64_t>(c.rows, 64) + 1);
    EXPECT_TRUE(test::Identical(db, threaded));
  }
}

TEST_P(MatMulTest, GradientsOfNothingAreZero) {
  const Padded dy(3, 0), dx(3, 4), sum = Padded::Normal(3, 4, 1), before = sum.Copy();
  const float nothing = 0;
  const TensorView none{&nothing, DType::kFloat32, {0, 4}};
  MatMulInputGradient(context_, dy.view(), none, false, dx.view());
  MatMulInputGradient(context_, dy.view(), none, true, sum.view());
  MatMulWeightGradient(context_, Padded(0, 3).view(), Padded(0, 4).view(), sum.view());
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(dx(i, j), 0);
  EXPECT_TRUE(test::Identical(sum, before));
}

TEST_P(MatMulTest, GradientsRefuseWhatDoesNotFit) {
  const Padded dy = Padded::Normal(2, 3, 1), x = Padded::Normal(2, 4, 2), dx(2, 4), dw = Padded::Normal(3, 4, 3);
  const Stored w = Stored::Normal(DType::kFloat32, {3, 4}, 2), wide = Stored::Normal(DType::kFloat64, {3, 4}, 2);
  EXPECT_NO_THROW(MatMulInputGradient(context_, dy.view(), w.view, false, dx.view()));
  EXPECT_THROW(MatMulInputGradient(context_, x.view(), w.view, false, dx.view()), Error);
  EXPECT_THROW(MatMulInputGradient(context_, dy.view(), wide.view, false, dx.view()), Error);
  EXPECT_THROW(MatMulInputGradient(context_, dy.view(), w.view, false, dx.view().Cols(0, 3)), Error);
  EXPECT_THROW(MatMulInputGradient(context_, dy.view().Rows(0, 1), w.view, false, dx.view()), Error);
  EXPECT_NO_THROW(MatMulWeightGradient(context_, dy.view(), x.view(), dw.view()));
  EXPECT_THROW(MatMulWeightGradient(context_, x.view(), dy.view(), dw.view()), Error);
  EXPECT_THROW(MatMulWeightGradient(context_, dy.view(), x.view().Rows(0, 1), dw.view()), Error);
  EXPECT_THROW(BiasGradient(context_, dy.view(), dw.view()), Error);
  EXPECT_THROW(BiasGradient(context_, dy.view(), dw.view().Rows(0, 1)), Error);
}

}  // namespace
}  // namespace shiftrt
