// SPDX-License-Identifier: Apache-2.0
// Products with a low-rank term, low-rank adapters, and attention of rounded operands.
#include <algorithm>
#include <tuple>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "tests/kernels/lra_cases.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/product_cases.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;
using test::ProductProblem;
using test::ProductShape;
using test::Stored;
using test::Transposed;

constexpr float kScale = 0.75f;

class LowRankTest : public test::OnEveryPrecision {
 protected:
  // Expects y to be the sums of a product, and of inner up, and inner (m, rank) to be kScale x down. down and up are
  // dense, (k, rank) and (rank, n).
  static void Expect(const ProductProblem& p, std::vector<Exact> sums, const std::vector<double>& down,
                     const std::vector<double>& up, const Padded& inner, const Padded& y) {
    const auto& [m, n, k] = p.shape;
    const DType type = Multiplied(m);
    const int64_t rank = inner.cols();
    std::vector<Exact> between = test::Product({m, rank, k}, test::Nearest(p.x, type), test::Nearest(down, type));
    for (Exact& exact : between) exact = {kScale * exact.value, kScale * exact.size};
    test::ExpectClose("inner", inner.Values(), between, test::AllowedForSum(k + 3));
    const std::vector<Exact> terms =
        test::Product({m, n, rank}, test::Nearest(inner.Values(), type), test::Nearest(up, type));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = {sums[i].value + terms[i].value, sums[i].size + terms[i].size};
    test::ExpectClose("y", y.Values(), sums, test::AllowedForSum(k + rank + 3));
  }
};
SHIFTRT_ON_PRECISIONS(LowRankTest, test::Precisions());

struct LowRankCase {
  ProductShape shape;
  int64_t rank;
};

// Few rows, parts of tiles, several blocks of rows and of depth, more than one panel of the rank, and a rank that is
// too large to be joined.
constexpr LowRankCase kLowRankCases[] = {{{3, 33, 40}, 8},     {{5, 65, 31}, 1},   {{13, 33, 600}, 8},
                                         {{33, 31, 1155}, 33}, {{770, 33, 40}, 8}, {{770, 40, 33}, 8},
                                         {{14, 70, 300}, 300}, {{1600, 34, 65}, 5}};

TEST_P(LowRankTest, ProductsAndInputGradientsAgreeWithFloat64) {
  for (const DType dtype : test::kStoredTypes) {
    for (const auto& [shape, rank] : kLowRankCases) {
      SCOPED_TRACE(fmt::format("{} {} rank {}", Name(dtype), shape.Name(), rank));
      const auto& [m, n, k] = shape;
      const ProductProblem p(shape, dtype, Multiplied(m));
      const Padded x = Padded::Of(m, k, p.x), inner(m, rank), y(m, n), threaded(m, n);
      const Stored w(dtype, {n, k}, Transposed(p.b, k, n)), turned(dtype, {k, n}, p.b), bias(dtype, {n}, p.bias),
          a = Stored::Normal(DType::kFloat32, {rank, k}, 3), b = Stored::Normal(DType::kFloat32, {n, rank}, 4);
      const std::vector<double> down = Transposed(a.values, rank, k), up = Transposed(b.values, n, rank);
      MatMulLowRank(On(1), x.view(), w.view, bias.view, {a.view, b.view, kScale, inner.view()}, y.view());
      Expect(p, p.Exactly(false, bias.values), down, up, inner, y);
      MatMulLowRank(On(3), x.view(), w.view, bias.view, {a.view, b.view, kScale, inner.view()}, threaded.view());
      EXPECT_TRUE(test::Identical(y, threaded));
      if (m <= 4) continue;  // such a gradient is a blocked product, and so in any precision
      const Stored turned_a(DType::kFloat32, {rank, n}, up), turned_b(DType::kFloat32, {k, rank}, down);
      const Padded dx = Padded::Of(m, n, p.before), many = dx.Copy(), passed(m, rank);
      MatMulInputGradientLowRank(On(1), x.view(), turned.view, {turned_a.view, turned_b.view, kScale, passed.view()},
                                 true, dx.view());
      Expect(p, p.Exactly(true), down, up, passed, dx);
      MatMulInputGradientLowRank(On(3), x.view(), turned.view, {turned_a.view, turned_b.view, kScale, passed.view()},
                                 true, many.view());
      EXPECT_TRUE(test::Identical(dx, many));
      if (HasFailure()) return;
    }
  }
}

class LraTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(LraTest);

TEST_P(LraTest, OneTokenAgreesWithFloat64) {
  for (const test::LraCase& c : test::LraCases()) {
    SCOPED_TRACE(c.Name());
    const test::LraProblem problem(c);
    const Padded p = Padded::Of(c.hidden, c.rank, Transposed(problem.p, c.rank, c.hidden)),
                 q = Padded::Of(c.rank, c.hidden, Transposed(problem.q, c.hidden, c.rank)),
                 bias = Padded::Of(1, c.hidden, problem.bias), h = Padded::Of(1, c.hidden, problem.h), inner(1, c.rank);
    MatMulRight(context_, h.view(), p.view(), false, inner.view());
    MatMulRight(context_, inner.view(), q.view(), true, h.view());
    AddTo(context_, bias.view(), h.view());
    test::ExpectClose("h", h.Values(), problem.Exactly(), test::AllowedForSum(c.hidden + c.rank + 3));
  }
}

Padded NearestNormal(int64_t rows, int64_t cols, uint64_t seed) {
  return Padded::Of(rows, cols, test::Drawn(rows * cols, seed, 1, DType::kBFloat16));
}

struct AttentionFound {
  Padded out, log_sums, dq, dk, dv;
};

// Queries, keys, values and the gradient of the output are bfloat16 numbers already, so that rounded products round
// only the probabilities and the gradients of scores.
class RoundedAttentionTest : public test::OnEveryPrecision {
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

SHIFTRT_ON_PRECISIONS(RoundedAttentionTest, test::RoundedPrecisions());

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
