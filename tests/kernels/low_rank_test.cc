// SPDX-License-Identifier: Apache-2.0
// Products with a low-rank term, and attention of rounded operands.
#include <algorithm>
#include <functional>
#include <tuple>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;
using test::Stored;
using test::SumTolerance;

struct Precision {
  Isa isa;
  Products products;
};

class LowRankTest : public testing::TestWithParam<Precision> {
 protected:
  static Context On(int threads) {
    Context context{threads, GetParam().isa};
    context.products = GetParam().products;
    return context;
  }
  static bool rounded() { return GetParam().products == Products::kBFloat16; }
  // The number that a product of so many rows multiplies.
  static double Taken(double value, int64_t rows) {
    return rounded() && rows > 4 ? static_cast<float>(BFloat16(static_cast<float>(value))) : value;
  }
};

std::vector<Precision> Precisions() {
  std::vector<Precision> precisions;
  for (const Isa isa : test::SupportedIsas()) precisions.push_back({isa, Products::kFloat32});
  for (const auto& [isa, emulated] :
       {std::pair{Isa::kAvx512BFloat16, SHIFTRT_EMULATED_AVX512BF16}, {Isa::kAmx, SHIFTRT_EMULATED_AMX}})
    if (isa <= BestIsa() || emulated) precisions.push_back({isa, Products::kBFloat16});
  return precisions;
}

INSTANTIATE_TEST_SUITE_P(Precisions, LowRankTest, testing::ValuesIn(Precisions()), [](const auto& info) {
  return fmt::format("{}_{}", Name(info.param.isa), Name(info.param.products));
});

constexpr float kScale = 0.75f;

// Expects y (m, n) to be x (m, k) W' + inner up', added to `before` if there is one, and inner (m, rank) to be kScale x
// down'. element(w, j, i) of a right operand is the one that meets column i of the left one.
template <typename Right>
void ExpectLowRank(const Padded& x, const Right& w, const Right& down, const Right& up, const Padded* before,
                   const Padded& inner, const Padded& y, const auto& taken) {
  const int64_t rows = x.rows(), depth = x.cols(), rank = inner.cols();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t r = 0; r < rank; ++r) {
      Exact exact;
      for (int64_t k = 0; k < depth; ++k) exact.Add(kScale * taken(x(i, k), rows) * taken(down(r, k), rows));
      ASSERT_NEAR(inner(i, r), exact.value, SumTolerance(depth + 3, exact.size)) << "inner at " << i << ", " << r;
    }
    for (int64_t j = 0; j < y.cols(); ++j) {
      Exact exact;
      for (int64_t k = 0; k < depth; ++k) exact.Add(taken(x(i, k), rows) * taken(w(j, k), rows));
      for (int64_t r = 0; r < rank; ++r) exact.Add(taken(inner(i, r), rows) * taken(up(j, r), rows));
      if (before != nullptr) exact.Add((*before)(i, j));
      ASSERT_NEAR(y(i, j), exact.value, SumTolerance(depth + rank + 3, exact.size)) << "at " << i << ", " << j;
    }
  }
  ASSERT_TRUE(y.PaddingIsUntouched());
  ASSERT_TRUE(inner.PaddingIsUntouched());
}

struct LowRankShape {
  int64_t m, n, k, rank;
};

// Few rows, parts of tiles, several blocks of rows and of depth, more than one panel of the rank, and a rank that is
// too large to be joined.
constexpr LowRankShape kLowRankShapes[] = {{3, 33, 40, 8},   {5, 65, 31, 1},   {13, 33, 600, 8},   {33, 31, 1155, 33},
                                           {770, 33, 40, 8}, {770, 40, 33, 8}, {14, 70, 300, 300}, {1600, 34, 65, 5}};

TEST_P(LowRankTest, ProductsAgreeWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const auto& [m, n, k, rank] : kLowRankShapes) {
      SCOPED_TRACE(fmt::format("{} m {} n {} k {} rank {}", Name(dtype), m, n, k, rank));
      const Padded x = Padded::Normal(m, k, 1), inner(m, rank), y(m, n), threaded(m, n);
      const Stored w = Stored::Normal(dtype, {n, k}, 2), a = Stored::Normal(DType::kFloat32, {rank, k}, 3),
                   b = Stored::Normal(DType::kFloat32, {n, rank}, 4), bias = Stored::Normal(dtype, {n}, 5);
      MatMulLowRank(On(1), x.view(), w.view, bias.view, {a.view, b.view, kScale, inner.view()}, y.view());
      const auto element = [](const Stored& of) {
        return [&of](int64_t j, int64_t i) { return of.values[j * of.view.cols() + i]; };
      };
      using Element = std::function<double(int64_t, int64_t)>;
      Padded before(m, n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) before(i, j) = static_cast<float>(bias.values[j]);
      ExpectLowRank<Element>(x, element(w), element(a), element(b), &before, inner, y, Taken);
      MatMulLowRank(On(3), x.view(), w.view, bias.view, {a.view, b.view, kScale, inner.view()}, threaded.view());
      EXPECT_TRUE(test::Identical(y, threaded));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LowRankTest, InputGradientsAgreeWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const auto& [m, k, n, rank] : kLowRankShapes) {
      if (m <= 4) continue;  // such a gradient is a blocked product, and so in any precision
      SCOPED_TRACE(fmt::format("{} m {} n {} k {} rank {}", Name(dtype), m, n, k, rank));
      const Padded dy = Padded::Normal(m, n, 1), inner(m, rank), before = Padded::Normal(m, k, 6, 10),
                   dx = before.Copy(), threaded = before.Copy();
      const Stored w = Stored::Normal(dtype, {n, k}, 2), a = Stored::Normal(DType::kFloat32, {rank, k}, 3),
                   b = Stored::Normal(DType::kFloat32, {n, rank}, 4);
      MatMulInputGradientLowRank(On(1), dy.view(), w.view, {a.view, b.view, kScale, inner.view()}, true, dx.view());
      const auto element = [](const Stored& of) {
        return [&of](int64_t j, int64_t i) { return of.values[i * of.view.cols() + j]; };
      };
      using Element = std::function<double(int64_t, int64_t)>;
      ExpectLowRank<Element>(dy, element(w), element(b), element(a), &before, inner, dx, Taken);
      MatMulInputGradientLowRank(On(3), dy.view(), w.view, {a.view, b.view, kScale, inner.view()}, true,
                                 threaded.view());
      EXPECT_TRUE(test::Identical(dx, threaded));
      if (HasFatalFailure()) return;
    }
  }
}

Padded NearestNormal(int64_t rows, int64_t cols, uint64_t seed) {
  Padded x = Padded::Normal(rows, cols, seed);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) x(i, j) = static_cast<float>(BFloat16(x(i, j)));
  return x;
}

struct AttentionFound {
  Padded out, log_sums, dq, dk, dv;
};

// Queries, keys, values and the gradient of the output are bfloat16 numbers already, so that rounded products round
// only the probabilities and the gradients of scores.
class RoundedAttentionTest : public LowRankTest {
 protected:
  static Context Plain() { return {1, std::min(GetParam().isa, Isa::kAvx512)}; }
  static AttentionFound Forward(const Context& context, const PackedAttention& packed) {
    const int64_t tokens = packed.q.rows;
    AttentionFound found{Padded(tokens, packed.q.cols), Padded(tokens, packed.shape.heads),
                         Padded(tokens, packed.q.cols), Padded(tokens, packed.keys.cols),
                         Padded(tokens, packed.keys.cols)};
    AttentionForGradient(context, packed, found.out.view(), found.log_sums.view());
    return found;
  }
};

INSTANTIATE_TEST_SUITE_P(Precisions, RoundedAttentionTest, testing::ValuesIn([] {
                           std::vector<Precision> rounded = Precisions();
                           std::erase_if(rounded,
                                         [](const Precision& one) { return one.products != Products::kBFloat16; });
                           return rounded;
                         }()),
                         [](const auto& info) { return std::string(Name(info.param.isa)); });

// The Frobenius norm of a - b, and of b.
std::pair<double, double> Norms(const Padded& a, const Padded& b) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t j = 0; j < a.cols(); ++j) {
      difference += std::pow(static_cast<double>(a(i, j)) - b(i, j), 2);
      size += std::pow(static_cast<double>(b(i, j)), 2);
    }
  }
  return {std::sqrt(difference), std::sqrt(size)};
}

TEST_P(RoundedAttentionTest, DiffersByTheRoundingOfProbabilities) {
  constexpr double kRounding = 0x1p-8;  // the largest relative error of one rounding to bfloat16
  for (const auto& [dim, window, soft_cap] : {std::tuple<int64_t, int64_t, float>{64, 0, 0}, {20, 50, 0}, {33, 0, 9}}) {
    SCOPED_TRACE(fmt::format("head_dim {} window {} soft cap {}", dim, window, soft_cap));
    const AttentionShape shape{6,      2,       dim, static_cast<float>(1 / std::sqrt(static_cast<double>(dim))),
                               window, soft_cap};
    const std::vector<int64_t> offsets = {0, 1, 40, 343};
    const Padded q = NearestNormal(343, 6 * dim, 1), keys = NearestNormal(343, 2 * dim, 2),
                 values = NearestNormal(343, 2 * dim, 3), dout = NearestNormal(343, 6 * dim, 4);
    const PackedAttention packed{shape, offsets, q.view(), keys.view(), values.view()};
    AttentionFound plain = Forward(Plain(), packed), found = Forward(On(3), packed);
    Padded sizes = values.Copy();
    for (int64_t i = 0; i < sizes.rows(); ++i)
      for (int64_t j = 0; j < sizes.cols(); ++j) sizes(i, j) = std::abs(sizes(i, j));
    const AttentionFound bound = Forward(Plain(), {shape, offsets, q.view(), keys.view(), sizes.view()});
    for (int64_t i = 0; i < q.rows(); ++i) {
      for (int64_t h = 0; h < shape.heads; ++h) ASSERT_NEAR(found.log_sums(i, h), plain.log_sums(i, h), 2e-5);
      for (int64_t j = 0; j < q.cols(); ++j)
        ASSERT_NEAR(found.out(i, j), plain.out(i, j), 1.05 * kRounding * bound.out(i, j)) << "at " << i << ", " << j;
    }
    for (const auto& [context, to] : {std::pair{Plain(), &plain}, {On(2), &found}})
      AttentionGradient(context, packed, plain.out.view(), plain.log_sums.view(), dout.view(),
                        {to->dq.view(), to->dk.view(), to->dv.view()});
    for (const auto& [rounded, exact] :
         {std::pair{&found.out, &plain.out}, {&found.dq, &plain.dq}, {&found.dk, &plain.dk}, {&found.dv, &plain.dv}}) {
      const auto [difference, size] = Norms(*rounded, *exact);
      EXPECT_LT(difference, kRounding * size);
      EXPECT_GT(difference, kRounding * size / 100);  // it is rounded
    }
  }
}

}  // namespace
}  // namespace shiftrt
