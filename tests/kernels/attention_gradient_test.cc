// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/attention.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;

class AttentionGradientTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(AttentionGradientTest);

struct GradientProblem {
  AttentionShape shape;
  std::vector<int64_t> offsets;
  Padded q, keys, values, dout;

  PackedAttention Packed() const { return {shape, offsets, q.view(), keys.view(), values.view()}; }
  int64_t tokens() const { return offsets.back(); }
};

GradientProblem MakeGradientProblem(AttentionShape shape, const std::vector<int64_t>& lengths, double size = 1) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  const int64_t tokens = offsets.back(), width = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  return {shape,
          offsets,
          Padded::Normal(tokens, width, 1, size),
          Padded::Normal(tokens, kv, 2),
          Padded::Normal(tokens, kv, 3),
          Padded::Normal(tokens, width, 4)};
}

struct Found {
  Padded out, log_sums, dq, dk, dv;
};

Found Compute(const Context& context, const GradientProblem& problem) {
  const int64_t tokens = problem.tokens(), heads = problem.shape.heads;
  Found found{Padded(tokens, problem.q.cols()), Padded(tokens, heads), Padded(tokens, problem.q.cols()),
              Padded(tokens, problem.keys.cols()), Padded(tokens, problem.keys.cols())};
  AttentionForGradient(context, problem.Packed(), found.out.view(), found.log_sums.view());
  AttentionGradient(context, problem.Packed(), found.out.view(), found.log_sums.view(), problem.dout.view(),
                    {found.dq.view(), found.dk.view(), found.dv.view()});
  return found;
}

bool Identical(const Found& a, const Found& b) {
  return test::Identical(a.out, b.out) && test::Identical(a.log_sums, b.log_sums) && test::Identical(a.dq, b.dq) &&
         test::Identical(a.dk, b.dk) && test::Identical(a.dv, b.dv);
}

// The keys that a query sees, with their scores and weights in float64.
struct Seen {
  int64_t first = 0;
  std::vector<double> scores, weights;
  double log_sum = 0, error = 0;  // the error of a score in float32
};

Seen See(const GradientProblem& problem, int64_t begin, int64_t t, int64_t head) {
  const auto& [heads, kv_heads, dim, scale, window, soft_cap] = problem.shape;
  const int64_t kv = head / (heads / kv_heads) * dim;
  Seen seen{window > 0 ? std::max(begin, t + 1 - window) : begin, {}, {}};
  for (int64_t j = seen.first; j <= t; ++j) {
    Exact score;
    for (int64_t d = 0; d < dim; ++d)
      score.Add(static_cast<double>(problem.q(t, head * dim + d)) * problem.keys(j, kv + d) * scale);
    seen.scores.push_back(soft_cap > 0 ? soft_cap * std::tanh(score.value / soft_cap) : score.value);
    seen.error = std::max(seen.error, test::SumTolerance(dim + 4, score.size) + 6e-7 * std::abs(seen.scores.back()));
  }
  const double most = *std::max_element(seen.scores.begin(), seen.scores.end());
  double sum = 0;
  for (const double score : seen.scores) sum += std::exp(score - most);
  seen.log_sum = most + std::log(sum);
  for (const double score : seen.scores) seen.weights.push_back(std::exp(score - seen.log_sum));
  return seen;
}

// Sums of products of which the left factors have errors themselves.
struct Bounded {
  Exact sum;
  double tolerance = 0;
  void Add(double left, double left_tolerance, double right) {
    sum.Add(left * right);
    tolerance += left_tolerance * std::abs(right);
  }
};

struct Expected {
  std::vector<Bounded> dq, dk, dv;
};

// The gradients in float64. The relative error of a weight is twice the error of a score, once for the score itself and
// once for the sum, plus those of the exponential and of the sums. That of a score's gradient is relative to the terms
// whose difference it is.
Expected Reference(const GradientProblem& problem, const Found* found) {
  const auto& [heads, kv_heads, dim, scale, window, soft_cap] = problem.shape;
  const int64_t tokens = problem.tokens(), group = heads / kv_heads;
  Expected expected{std::vector<Bounded>(tokens * heads * dim), std::vector<Bounded>(tokens * kv_heads * dim),
                    std::vector<Bounded>(tokens * kv_heads * dim)};
  for (size_t s = 0; s + 1 < problem.offsets.size(); ++s) {
    const int64_t begin = problem.offsets[s], end = problem.offsets[s + 1];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        const Seen seen = See(problem, begin, t, head);
        if (found != nullptr) {
          EXPECT_NEAR(found->log_sums(t, head), seen.log_sum, seen.error + 1e-6 * (1 + std::abs(seen.log_sum)));
        }
        const int64_t kv = head / group * dim, at = head * dim, visible = t + 1 - seen.first;
        const double relative = 2.1 * std::expm1(std::min(1.0, 2 * seen.error)) + 2e-6 +
                                static_cast<double>(2 * visible + dim) * test::kUnit +
                                4 * test::kUnit * std::abs(seen.log_sum);
        std::vector<Exact> products(visible);
        Exact mean;
        for (int64_t j = 0; j < visible; ++j) {
          for (int64_t d = 0; d < dim; ++d)
            products[j].Add(static_cast<double>(problem.dout(t, at + d)) * problem.values(seen.first + j, kv + d));
          mean.value += seen.weights[j] * products[j].value;
          mean.size += seen.weights[j] * products[j].size;
        }
        for (int64_t j = 0; j < visible; ++j) {
          const double tanh = soft_cap > 0 ? seen.scores[j] / soft_cap : 0, slope = scale * (1 - tanh * tanh);
          const double ds = seen.weights[j] * (products[j].value - mean.value) * slope;
          const double cap_error = soft_cap > 0 ? 4 * seen.error / soft_cap + 4e-6 : 0;
          const double ds_error =
              seen.weights[j] * (products[j].size + mean.size) * scale * (relative + cap_error) + 1e-37;
          const int64_t row = (seen.first + j) * kv_heads * dim + kv;
          for (int64_t d = 0; d < dim; ++d) {
            expected.dq[(t * heads + head) * dim + d].Add(ds, ds_error, problem.keys(seen.first + j, kv + d));
            expected.dk[row + d].Add(ds, ds_error, problem.q(t, at + d));
            expected.dv[row + d].Add(seen.weights[j], relative * seen.weights[j] + 1e-37, problem.dout(t, at + d));
          }
        }
      }
    }
  }
  return expected;
}

void ExpectNear(const char* name, const Padded& found, const std::vector<Bounded>& expected, int64_t terms) {
  for (int64_t i = 0; i < found.rows(); ++i)
    for (int64_t j = 0; j < found.cols(); ++j) {
      const Bounded& exact = expected[i * found.cols() + j];
      ASSERT_NEAR(found(i, j), exact.sum.value, exact.tolerance + test::SumTolerance(terms, exact.sum.size))
          << name << " at " << i << ", " << j;
    }
  EXPECT_TRUE(found.PaddingIsUntouched()) << name;
}

void ExpectGradients(const GradientProblem& problem, const Found& found) {
  const Expected expected = Reference(problem, &found);
  const int64_t terms = problem.tokens() * problem.shape.heads;
  ExpectNear("dq", found.dq, expected.dq, terms);
  ExpectNear("dk", found.dk, expected.dk, terms);
  ExpectNear("dv", found.dv, expected.dv, terms);
}

// The reference's formula against central differences of sum(dout out), in float64.
TEST(AttentionGradient, TheReferenceIsTheDerivative) {
  for (const float soft_cap : {0.0f, 1.5f}) {
    GradientProblem problem =
        MakeGradientProblem({.heads = 2, .kv_heads = 1, .head_dim = 4, .window = 4, .soft_cap = soft_cap}, {6, 1});
    const auto loss = [&] {
      double sum = 0;
      for (size_t s = 0; s + 1 < problem.offsets.size(); ++s)
        for (int64_t t = problem.offsets[s]; t < problem.offsets[s + 1]; ++t)
          for (int64_t head = 0; head < 2; ++head) {
            const Seen seen = See(problem, problem.offsets[s], t, head);
            for (size_t j = 0; j < seen.weights.size(); ++j)
              for (int64_t d = 0; d < 4; ++d)
                sum += seen.weights[j] * problem.dout(t, head * 4 + d) *
                       problem.values(seen.first + static_cast<int64_t>(j), d);
          }
      return sum;
    };
    const Expected expected = Reference(problem, nullptr);
    const auto check = [&](const Padded& parameter, const std::vector<Bounded>& gradient) {
      for (int64_t i = 0; i < parameter.rows(); ++i)
        for (int64_t j = 0; j < parameter.cols(); ++j) {
          const float value = parameter(i, j), above = value + 0x1p-8f, below = value - 0x1p-8f;
          parameter(i, j) = above;
          const double more = loss();
          parameter(i, j) = below;
          const double less = loss();
          parameter(i, j) = value;
          ASSERT_NEAR(gradient[i * parameter.cols() + j].sum.value,
                      (more - less) / (static_cast<double>(above) - below), 1e-4);
        }
    };
    check(problem.q, expected.dq);
    check(problem.keys, expected.dk);
    check(problem.values, expected.dv);
  }
}

TEST_P(AttentionGradientTest, EveryHeadDimensionAndGroup) {
  for (const int64_t head_dim : {4, 6, 8, 20, 64, 80, 128}) {
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {9, 3}, {7, 1}, {14, 2}}) {
      SCOPED_TRACE(fmt::format("head_dim {} heads {} of {}", head_dim, heads, kv_heads));
      const GradientProblem problem =
          MakeGradientProblem({.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}, {9, 1, 1, 23, 4});
      ExpectGradients(problem, Compute(context_, problem));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionGradientTest, LongSequences) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {6, 2}}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{63}, {64}, {65}, {127, 1, 129}, {260, 0, 31, 97}, {300}}) {
      SCOPED_TRACE(fmt::format("heads {} lengths {}", heads, fmt::join(lengths, ", ")));
      const GradientProblem problem =
          MakeGradientProblem({.heads = heads, .kv_heads = kv_heads, .head_dim = 12}, lengths);
      const Found found = Compute(context_, problem);
      ExpectGradients(problem, found);
      if (HasFatalFailure()) return;
      for (const int threads : {2, 3}) EXPECT_TRUE(Identical(found, Compute(On(threads), problem))) << threads;
    }
  }
}

TEST_P(AttentionGradientTest, WindowsAndSoftCaps) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {4, 1}}) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{9, 1, 40}, {140, 3, 75}, {290}}) {
      for (const int64_t window : {0, 1, 5, 64, 129, 1000}) {
        for (const float soft_cap : {0.0f, 3.0f}) {
          if (window == 0 && soft_cap == 0) continue;
          SCOPED_TRACE(
              fmt::format("heads {} lengths {} window {} cap {}", heads, fmt::join(lengths, ", "), window, soft_cap));
          const GradientProblem problem = MakeGradientProblem(
              {.heads = heads, .kv_heads = kv_heads, .head_dim = 12, .window = window, .soft_cap = soft_cap}, lengths,
              2);
          const Found found = Compute(context_, problem);
          ExpectGradients(problem, found);
          if (HasFatalFailure()) return;
          EXPECT_TRUE(Identical(found, Compute(On(3), problem)));
        }
      }
    }
  }
}

// The forward pass has the bits of Attention(), and the gradients of a sequence do not depend on its batch.
TEST_P(AttentionGradientTest, NeighboursDoNotChangeABit) {
  const GradientProblem problem = MakeGradientProblem({.heads = 6, .kv_heads = 2, .head_dim = 16}, {150, 1, 33, 200});
  const Found all = Compute(context_, problem);
  std::vector<AttentionSequence> sequences;
  for (size_t s = 0; s + 1 < problem.offsets.size(); ++s) {
    const int64_t begin = problem.offsets[s], count = problem.offsets[s + 1] - begin;
    sequences.push_back(
        {begin, count, 0, problem.keys.view().Rows(begin, count), problem.values.view().Rows(begin, count)});
    const std::vector<int64_t> own = {0, count};
    const PackedAttention alone{problem.shape, own, problem.q.view().Rows(begin, count), sequences.back().keys,
                                sequences.back().values};
    Found found{Padded(count, all.out.cols()), Padded(count, 6), Padded(count, all.dq.cols()),
                Padded(count, all.dk.cols()), Padded(count, all.dv.cols())};
    AttentionForGradient(context_, alone, found.out.view(), found.log_sums.view());
    AttentionGradient(context_, alone, found.out.view(), found.log_sums.view(), problem.dout.view().Rows(begin, count),
                      {found.dq.view(), found.dk.view(), found.dv.view()});
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < found.dq.cols(); ++j) ASSERT_EQ(found.dq(i, j), all.dq(begin + i, j));
      for (int64_t j = 0; j < found.dk.cols(); ++j) ASSERT_EQ(found.dk(i, j), all.dk(begin + i, j));
      for (int64_t j = 0; j < found.dv.cols(); ++j) ASSERT_EQ(found.dv(i, j), all.dv(begin + i, j));
    }
  }
  const Padded out(problem.tokens(), all.out.cols());
  Attention(context_, problem.shape, sequences, problem.q.view(), out.view());
  EXPECT_TRUE(test::Identical(out, all.out));
}

// Scores of hundreds: nearly all the weight is on one key, and nothing overflows.
TEST_P(AttentionGradientTest, LargeLogits) {
  const GradientProblem problem = MakeGradientProblem({.heads = 4, .kv_heads = 2, .head_dim = 8}, {140, 5}, 300);
  const Found found = Compute(context_, problem);
  for (const Padded* gradient : {&found.dq, &found.dk, &found.dv})
    for (int64_t i = 0; i < gradient->rows(); ++i)
      for (int64_t j = 0; j < gradient->cols(); ++j) ASSERT_TRUE(std::isfinite((*gradient)(i, j)));
  ExpectGradients(problem, found);
}

TEST_P(AttentionGradientTest, RefusesWhatDoesNotFit) {
  const GradientProblem good = MakeGradientProblem({.heads = 4, .kv_heads = 2, .head_dim = 8}, {3, 2});
  const Found found = Compute(context_, good);
  const auto refused = [&](auto&& change) {
    PackedAttention packed = good.Packed();
    AttentionGradients gradients{found.dq.view(), found.dk.view(), found.dv.view()};
    change(packed, gradients);
    EXPECT_THROW(
        AttentionGradient(context_, packed, found.out.view(), found.log_sums.view(), good.dout.view(), gradients),
        Error);
  };
  const std::vector<int64_t> few = {0, 3}, unsorted = {0, 4, 3, 5};
  refused([](PackedAttention& packed, AttentionGradients&) { packed.shape.kv_heads = 3; });
  refused([](PackedAttention& packed, AttentionGradients&) { packed.shape.window = -1; });
  refused([&](PackedAttention& packed, AttentionGradients&) { packed.offsets = few; });
  refused([&](PackedAttention& packed, AttentionGradients&) { packed.offsets = unsorted; });
  refused([](PackedAttention& packed, AttentionGradients&) { packed.keys.rows = 4; });
  refused([](PackedAttention&, AttentionGradients& gradients) { gradients.values.cols = 15; });
  EXPECT_THROW(AttentionForGradient(context_, good.Packed(), found.out.view(), found.log_sums.view().Cols(0, 3)),
               Error);
}

}  // namespace
}  // namespace shiftrt
