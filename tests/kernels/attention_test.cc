// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include "tests/kernels/attention_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::AttentionCase;
using test::AttentionProblem;
using test::AttentionSpan;
using test::Exact;
using test::Padded;

class AttentionTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(AttentionTest);

// A problem in memory: packed sequences, each with its own cache.
struct Problem {
  explicit Problem(const AttentionCase& c) : Problem(AttentionProblem(c)) {}
  explicit Problem(AttentionProblem problem)
      : exact(std::move(problem)),
        sinks(exact.Sinks()),
        shape{exact.c.heads, exact.c.kv_heads, exact.c.head_dim, exact.scale, exact.c.window, exact.c.soft_cap, sinks},
        q(Padded::Of(exact.tokens, exact.q_dim(), exact.q)),
        keys(Padded::Of(exact.rows, exact.kv_dim(), exact.keys)),
        values(Padded::Of(exact.rows, exact.kv_dim(), exact.values)) {
    for (const auto& [begin, count, past, first_row] : exact.sequences)
      sequences.push_back({begin, count, past, keys.view().Rows(first_row, past + count + 2),
                           values.view().Rows(first_row, past + count + 2)});
  }

  AttentionProblem exact;
  std::vector<float> sinks;
  AttentionShape shape;
  Padded q, keys, values;
  std::vector<AttentionSequence> sequences;
};

Padded Attend(const Context& context, const Problem& problem) {
  Padded out(problem.q.rows(), problem.q.cols());
  Attention(context, problem.shape, problem.sequences, problem.q.view(), out.view());
  return out;
}

// An error e of a score multiplies its weight, and its part of the sum of weights, by about 1 + e. The slope of the
// soft cap is at most 1, so it adds only the error of its own arithmetic. The exponential adds a relative error of
// 3e-7, and for scores far below the largest an error of their own size. The sum of weighted values has the error of a
// sum.
void ExpectAgreement(const AttentionProblem& problem, const Padded& out) {
  const std::vector<double> found = out.Values();
  const int64_t dim = problem.c.head_dim;
  problem.ForEachHead([&](int64_t, int64_t head, int64_t at, const AttentionProblem::Seen& seen) {
    const double error =
        test::SumTolerance(dim + 4, seen.score_size) + (problem.c.soft_cap > 0 ? 6e-7 * seen.score_most : 0);
    const std::vector<Exact> expected = problem.Attended(seen, head);
    for (int64_t d = 0; d < dim; ++d)
      EXPECT_CLOSE(found[at + d], expected[d].value,
                   2.1 * (std::expm1(std::min(error, 1.0)) + 3e-7) * expected[d].size +
                       2 * test::SumTolerance(std::ssize(seen.scores), expected[d].size),
                   at + d);
  });
}

TEST_P(AttentionTest, AgreesWithFloat64) {
  std::vector<AttentionCase> cases = test::AttentionCases();
  std::ranges::copy(test::AttentionSinkCases(), std::back_inserter(cases));
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.Name());
    AttentionProblem exact(c);
    exact.HideUnseen();
    const Problem problem(std::move(exact));
    const Padded out = Attend(context_, problem);
    ExpectAgreement(problem.exact, out);
    EXPECT_TRUE(test::Identical(out, Attend(On(3), problem)));
    if (HasFailure()) return;
  }
}

// A sink far above all scores takes all of the weight, and one far below none of it.
TEST_P(AttentionTest, FarSinksTakeAllOrNothing) {
  Problem problem(AttentionCase{4, 2, 16, {{0, 150}, {40, 1}}});
  const Padded without = Attend(context_, problem);
  for (const float sink : {-200.0f, -3e38f}) {
    problem.sinks.assign(4, sink);
    problem.shape.sinks = problem.sinks;
    EXPECT_TRUE(test::Identical(without, Attend(context_, problem)));
  }
  for (const float sink : {200.0f, 3e38f}) {
    problem.sinks.assign(4, sink);
    for (const double value : Attend(context_, problem).Values()) ASSERT_NEAR(value, 0, 1e-30);
  }
  problem.sinks.pop_back();
  problem.shape.sinks = problem.sinks;
  EXPECT_THROW(Attend(context_, problem), Error);
}

// A window that hides no key must give the same bits.
TEST_P(AttentionTest, AWideWindowIsNone) {
  Problem problem(AttentionCase{4, 2, 16, {{0, 150}, {40, 1}, {130, 33}}});
  const Padded open = Attend(context_, problem);
  problem.shape.window = 163;
  EXPECT_TRUE(test::Identical(open, Attend(context_, problem)));
}

TEST_P(AttentionTest, ThreadsAndNeighboursDoNotChangeABit) {
  const Problem problem(AttentionCase{14, 2, 16, {{0, 150}, {40, 1}, {130, 33}}});
  const Padded one = Attend(On(1), problem);
  for (const int threads : {2, 3, 4}) EXPECT_TRUE(test::Identical(one, Attend(On(threads), problem))) << threads;
  for (const AttentionSequence& sequence : problem.sequences) {
    Padded alone(problem.q.rows(), problem.q.cols());
    Attention(context_, problem.shape, std::span(&sequence, 1), problem.q.view(), alone.view());
    for (int64_t i = 0; i < problem.q.rows(); ++i)
      for (int64_t j = 0; j < problem.q.cols(); ++j)
        if (i >= sequence.begin && i < sequence.begin + sequence.count) {
          ASSERT_EQ(alone(i, j), one(i, j));
        } else {
          ASSERT_TRUE(std::isnan(alone(i, j))) << "a row of another sequence was written";
        }
  }
}

// Key j is e_(j mod dim) times 1e18 and the query is e_c times 1e15, so only keys with j = c (mod dim) have a weight,
// and their weights are equal.
TEST_P(AttentionTest, HugeLogitsPickTheirKeys) {
  const int64_t dim = 16;
  for (const AttentionSpan& span : {AttentionSpan{0, 200}, {199, 1}}) {
    for (const float sign : {1.0f, -1.0f}) {
      const Problem problem(AttentionCase{1, 1, dim, {span}});
      const int64_t seen = span.past + span.count;
      for (int64_t j = 0; j < seen; ++j)
        for (int64_t d = 0; d < dim; ++d) problem.keys(j, d) = d == j % dim ? 1e18f : 0.0f;
      for (int64_t i = 0; i < span.count; ++i)
        for (int64_t d = 0; d < dim; ++d) problem.q(i, d) = d == (span.past + i) % dim ? sign * 1e15f : 0.0f;
      const Padded out = Attend(context_, problem);
      for (int64_t i = 0; i < span.count; ++i) {
        const int64_t last = span.past + i;
        if (sign < 0 && last == 0) continue;  // a single key has weight 1 whatever its score
        for (int64_t d = 0; d < dim; ++d) {
          Exact sum;
          int64_t count = 0;
          for (int64_t j = 0; j <= last; ++j) {
            if ((j % dim == last % dim) != (sign > 0)) continue;
            sum.Add(problem.values(j, d));
            ++count;
          }
          const auto n = static_cast<double>(count);
          ASSERT_NEAR(out(i, d), sum.value / n, test::SumTolerance(last + 4, sum.size / n)) << last << " " << d;
        }
      }
    }
  }
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  const Problem good(AttentionCase{4, 2, 8, {{2, 3}}});
  const Padded out(3, 32);
  const auto refused = [&](auto&& change) {
    AttentionShape shape = good.shape;
    AttentionSequence sequence = good.sequences[0];
    change(shape, sequence);
    EXPECT_THROW(Attention(context_, shape, std::span(&sequence, 1), good.q.view(), out.view()), Error);
  };
  refused([](AttentionShape& shape, AttentionSequence&) { shape.kv_heads = 3; });
  refused([](AttentionShape& shape, AttentionSequence&) { shape.kv_heads = 0; });
  refused([](AttentionShape& shape, AttentionSequence&) { shape.head_dim = 9; });
  refused([](AttentionShape& shape, AttentionSequence&) { shape.window = -1; });
  refused([](AttentionShape& shape, AttentionSequence&) { shape.soft_cap = -1; });
  refused([](AttentionShape&, AttentionSequence& sequence) { sequence.begin = 1; });
  refused([](AttentionShape&, AttentionSequence& sequence) { sequence.past = 7; });
  refused([](AttentionShape&, AttentionSequence& sequence) { sequence.values.rows = 4; });
  EXPECT_THROW(Attention(context_, good.shape, good.sequences, good.q.view(), out.view().Cols(0, 31)), Error);
}

// A NaN in a query, key or value must reach the output.
TEST_P(AttentionTest, KeepsNotANumber) {
  for (const AttentionSpan& span : {AttentionSpan{0, 40}, {39, 1}}) {
    for (const char* where : {"query", "key", "value"}) {
      const Problem problem(AttentionCase{2, 2, 8, {span}});
      const int64_t last = span.count - 1;
      if (where[0] == 'q') problem.q(last, 3) = test::kNan;
      if (where[0] == 'k') problem.keys(5, 3) = test::kNan;
      if (where[0] == 'v') problem.values(5, 3) = test::kNan;
      EXPECT_TRUE(std::isnan(Attend(context_, problem)(last, 3))) << where << " of " << span.count;
    }
  }
}

}  // namespace
}  // namespace shiftrt
