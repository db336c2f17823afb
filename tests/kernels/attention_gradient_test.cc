// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::AttentionCase;
using test::AttentionProblem;
using test::Padded;

class AttentionGradientTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(AttentionGradientTest);

struct GradientProblem {
  explicit GradientProblem(const AttentionCase& c)
      : exact(c, DType::kFloat32, 0),
        sinks(exact.Sinks()),
        shape{c.heads, c.kv_heads, c.head_dim, exact.scale, c.window, c.soft_cap, sinks},
        q(Padded::Of(exact.tokens, exact.q_dim(), exact.q)),
        keys(Padded::Of(exact.rows, exact.kv_dim(), exact.keys)),
        values(Padded::Of(exact.rows, exact.kv_dim(), exact.values)),
        dout(Padded::Of(exact.tokens, exact.q_dim(), exact.dout)) {
    for (const AttentionProblem::Sequence& s : exact.sequences) offsets.push_back(s.begin + s.count);
  }
  PackedAttention Packed() const { return {shape, offsets, q.view(), keys.view(), values.view()}; }
  int64_t tokens() const { return exact.tokens; }

  AttentionProblem exact;
  std::vector<float> sinks;
  AttentionShape shape;
  std::vector<int64_t> offsets = {0};
  Padded q, keys, values, dout;
};

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

// The error of a score.
double ScoreError(const AttentionCase& c, const AttentionProblem::Seen& seen) {
  return test::SumTolerance(c.head_dim + 4, seen.score_size) + 6e-7 * seen.score_most;
}

// The relative error of a weight is twice the error of a score, once for the score itself and once for the sum, plus
// those of the exponential and of the sums. That of a score's gradient is relative to the terms whose difference it is.
void ExpectGradients(const AttentionProblem& problem, const Found& found) {
  const AttentionCase& c = problem.c;
  problem.ForEachHead([&](int64_t t, int64_t head, int64_t, const AttentionProblem::Seen& seen) {
    EXPECT_NEAR(found.log_sums(t, head), seen.log_sum, ScoreError(c, seen) + 1e-6 * (1 + std::abs(seen.log_sum)));
  });
  const AttentionProblem::Gradients exact = problem.GradientsExactly([&](const AttentionProblem::Seen& seen) {
    const double error = ScoreError(c, seen);
    const double relative = 2.1 * std::expm1(std::min(1.0, 2 * error)) + 2e-6 +
                            static_cast<double>(2 * std::ssize(seen.scores) + c.head_dim) * test::kUnit +
                            4 * test::kUnit * std::abs(seen.log_sum);
    return AttentionProblem::Errors{relative, c.soft_cap > 0 ? 4 * error / static_cast<double>(c.soft_cap) + 4e-6 : 0,
                                    relative};
  });
  const int64_t terms = problem.tokens * c.heads;
  test::ExpectClose("dq", found.dq.Values(), exact.dq, terms);
  test::ExpectClose("dkeys", found.dk.Values(), exact.dkeys, terms);
  test::ExpectClose("dvalues", found.dv.Values(), exact.dvalues, terms);
}

// The reference's formula against central differences of sum(dout out), in float64.
TEST(AttentionGradient, TheReferenceIsTheDerivative) {
  for (const float soft_cap : {0.0f, 1.5f}) {
    AttentionProblem problem({2, 1, 4, {{0, 6}, {0, 1}}, 1, 4, soft_cap}, DType::kFloat32, 0);
    const auto loss = [&] {
      double sum = 0;
      problem.ForEachHead([&](int64_t, int64_t head, int64_t at, const AttentionProblem::Seen& seen) {
        const std::vector<test::Exact> out = problem.Attended(seen, head);
        for (int64_t d = 0; d < 4; ++d) sum += out[d].value * problem.dout[at + d];
      });
      return sum;
    };
    const AttentionProblem::Gradients exact =
        problem.GradientsExactly([](const AttentionProblem::Seen&) { return AttentionProblem::Errors{}; });
    const auto check = [&](std::vector<double>& parameters, const std::vector<AttentionProblem::Bounded>& gradient) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const double value = parameters[i], step = 0x1p-10;
        parameters[i] = value + step;
        const double more = loss();
        parameters[i] = value - step;
        ASSERT_NEAR(gradient[i].sum.value, (more - loss()) / (2 * step), 1e-5);
        parameters[i] = value;
      }
    };
    check(problem.q, exact.dq);
    check(problem.keys, exact.dkeys);
    check(problem.values, exact.dvalues);
  }
}

// Central differences of sum(dout out), in float64, to which the kernel adds.
TEST_P(AttentionGradientTest, SinksHaveTheDerivative) {
  const AttentionCase c{4, 2, 8, {{0, 60}, {0, 1}, {0, 9}}, 1, 5, 0, true};
  GradientProblem problem(c);
  const Found found = Compute(context_, problem);
  const auto loss = [&] {
    double sum = 0;
    problem.exact.ForEachHead([&](int64_t, int64_t head, int64_t at, const AttentionProblem::Seen& seen) {
      const std::vector<test::Exact> out = problem.exact.Attended(seen, head);
      for (int64_t d = 0; d < c.head_dim; ++d) sum += out[d].value * problem.exact.dout[at + d];
    });
    return sum;
  };
  std::vector<float> dsinks(4, 2.0f);
  AttentionSinkGradient(On(3), problem.shape, found.out.view(), found.log_sums.view(), problem.dout.view(), dsinks);
  for (int64_t head = 0; head < c.heads; ++head) {
    double& sink = problem.exact.sinks[head];
    const double value = sink, step = 0x1p-10;
    sink = value + step;
    const double more = loss();
    sink = value - step;
    EXPECT_NEAR(dsinks[head] - 2, (more - loss()) / (2 * step), 1e-4) << head;
    sink = value;
  }
  dsinks.pop_back();
  EXPECT_THROW(AttentionSinkGradient(context_, problem.shape, found.out.view(), found.log_sums.view(),
                                     problem.dout.view(), dsinks),
               Error);
}

TEST_P(AttentionGradientTest, AgreesWithFloat64) {
  std::vector<AttentionCase> cases = test::AttentionGradientCases();
  std::ranges::copy(test::AttentionSinkGradientCases(), std::back_inserter(cases));
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.Name());
    const GradientProblem problem(c);
    const Found found = Compute(context_, problem);
    ExpectGradients(problem.exact, found);
    EXPECT_TRUE(Identical(found, Compute(On(3), problem)));
    if (HasFailure()) return;
  }
}

// The forward pass has the bits of Attention(), and the gradients of a sequence do not depend on its batch.
TEST_P(AttentionGradientTest, NeighboursDoNotChangeABit) {
  const GradientProblem problem({6, 2, 16, {{0, 150}, {0, 1}, {0, 33}, {0, 200}}});
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

TEST_P(AttentionGradientTest, RefusesWhatDoesNotFit) {
  const GradientProblem good({4, 2, 8, {{0, 3}, {0, 2}}});
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
