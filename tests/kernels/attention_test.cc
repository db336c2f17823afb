// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <algorithm>

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;

class AttentionTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(AttentionTest);

struct Span {
  int64_t past, count;
};

// Packed sequences, each with its own cache. The capacity of a cache beyond its last key is filled with NaN.
struct Problem {
  AttentionShape shape;
  std::vector<AttentionSequence> sequences;
  std::vector<Padded> keys, values;
  Padded q;
};

Problem MakeProblem(int64_t heads, int64_t kv_heads, int64_t head_dim, const std::vector<Span>& spans,
                    double size = 1) {
  int64_t tokens = 0;
  for (const Span& span : spans) tokens += span.count;
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  const AttentionShape shape{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .scale = scale};
  Problem problem{shape, {}, {}, {}, Padded::Normal(tokens, heads * head_dim, 1, size)};
  int64_t begin = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    const int64_t seen = spans[s].past + spans[s].count, capacity = seen + 3, width = kv_heads * head_dim;
    Padded keys = Padded::Normal(capacity, width, 2 + 2 * s), values = Padded::Normal(capacity, width, 3 + 2 * s);
    for (int64_t i = seen; i < capacity; ++i)
      for (int64_t j = 0; j < width; ++j) keys(i, j) = values(i, j) = test::kNan;
    problem.sequences.push_back({begin, spans[s].count, spans[s].past, keys.view(), values.view()});
    problem.keys.push_back(std::move(keys));
    problem.values.push_back(std::move(values));
    begin += spans[s].count;
  }
  return problem;
}

Padded Attend(const Context& context, const Problem& problem) {
  Padded out(problem.q.rows(), problem.q.cols());
  Attention(context, problem.shape, problem.sequences, problem.q.view(), out.view());
  return out;
}

// Reference for one query and head, with the softmax in float64, and its tolerance. An error e of a score multiplies
// its weight, and its part of the sum of weights, by about 1 + e. The exponential adds a relative error of 3e-7, and
// for scores far below the largest an error of their own size. The sum of weighted values has the error of a sum.
void ExpectAttended(const Problem& problem, const AttentionSequence& sequence, int64_t i, int64_t head,
                    const Padded& out) {
  const auto& [heads, kv_heads, dim, scale, window, soft_cap] = problem.shape;
  const int64_t kv = head / (heads / kv_heads) * dim, row = sequence.begin + i, end = sequence.past + i + 1;
  const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0, visible = end - begin;
  std::vector<double> scores(visible);
  double error = 0;
  for (int64_t j = 0; j < visible; ++j) {
    Exact score;
    for (int64_t d = 0; d < dim; ++d)
      score.Add(static_cast<double>(problem.q(row, head * dim + d)) * sequence.keys(begin + j, kv + d) * scale);
    // The slope of the soft cap is at most 1, so it adds only the error of its own arithmetic.
    scores[j] = soft_cap > 0 ? soft_cap * std::tanh(score.value / soft_cap) : score.value;
    error = std::max(error, test::SumTolerance(dim + 4, score.size) + (soft_cap > 0 ? 6e-7 * std::abs(scores[j]) : 0));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (int64_t d = 0; d < dim; ++d) {
    Exact expected;
    for (int64_t j = 0; j < visible; ++j) expected.Add(scores[j] / sum * sequence.values(begin + j, kv + d));
    const double tolerance = 2.1 * (std::expm1(std::min(error, 1.0)) + 3e-7) * expected.size +
                             2 * test::SumTolerance(visible, expected.size);
    ASSERT_NEAR(out(row, head * dim + d), expected.value, tolerance)
        << "row " << row << " head " << head << " dim " << d << " of " << visible << " keys";
  }
}

void ExpectAgreement(const Problem& problem, const Padded& out) {
  for (const AttentionSequence& sequence : problem.sequences)
    for (int64_t i = 0; i < sequence.count; ++i)
      for (int64_t head = 0; head < problem.shape.heads; ++head) {
        ExpectAttended(problem, sequence, i, head, out);
        if (testing::Test::HasFatalFailure()) return;
      }
  EXPECT_TRUE(out.PaddingIsUntouched());
}

TEST_P(AttentionTest, EveryHeadDimensionAndGroup) {
  for (const int64_t head_dim : {4, 6, 8, 20, 64, 80, 96, 128}) {
    for (const auto& [heads, kv_heads] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {8, 2}, {7, 1}, {14, 2}, {15, 5}}) {
      SCOPED_TRACE(fmt::format("head_dim {} heads {} of {}", head_dim, heads, kv_heads));
      const Problem problem = MakeProblem(heads, kv_heads, head_dim, {{0, 9}, {5, 1}, {0, 1}, {3, 4}});
      ExpectAgreement(problem, Attend(context_, problem));
      if (HasFatalFailure()) return;
    }
  }
}

// Numbers of queries and keys around multiples of the block size, from one token to hundreds, with and without earlier
// tokens in the cache.
TEST_P(AttentionTest, LongSequences) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {7, 1}}) {
    for (const Span& span : {Span{0, 63},
                             {0, 64},
                             {0, 65},
                             {0, 127},
                             {0, 129},
                             {0, 260},
                             {127, 1},
                             {128, 1},
                             {511, 1},
                             {600, 2},
                             {120, 20},
                             {128, 17},
                             {250, 40},
                             {300, 200}}) {
      SCOPED_TRACE(fmt::format("heads {} past {} count {}", heads, span.past, span.count));
      const Problem problem = MakeProblem(heads, kv_heads, 12, {span});
      ExpectAgreement(problem, Attend(context_, problem));
      if (HasFatalFailure()) return;
    }
  }
}

// Tests windows of one key, within a block of keys, across several blocks, and wider than the sequence, with and
// without a soft cap of the scores. Keys before a window are NaN, so that reading one is noticed.
TEST_P(AttentionTest, WindowsAndSoftCaps) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {4, 1}}) {
    for (const Span& span : {Span{0, 9}, {40, 1}, {0, 140}, {300, 1}, {250, 70}, {130, 300}}) {
      for (const int64_t window : {0, 1, 5, 64, 129, 1000}) {
        for (const float soft_cap : {0.0f, 3.0f}) {
          if (window == 0 && soft_cap == 0) continue;
          SCOPED_TRACE(fmt::format("heads {} past {} count {} window {} cap {}", heads, span.past, span.count, window,
                                   soft_cap));
          Problem problem = MakeProblem(heads, kv_heads, 12, {span}, 4);
          problem.shape.window = window;
          problem.shape.soft_cap = soft_cap;
          const int64_t unseen =
              window > 0 ? span.past + 1 - window : 0;  // keys that the first query, and so every query, does not see
          for (int64_t j = 0; j < unseen; ++j)
            for (int64_t d = 0; d < kv_heads * 12; ++d) problem.keys[0](j, d) = problem.values[0](j, d) = test::kNan;
          const Padded out = Attend(context_, problem);
          ExpectAgreement(problem, out);
          if (HasFatalFailure()) return;
          EXPECT_TRUE(test::Identical(out, Attend(On(3), problem)));
        }
      }
    }
  }
}

// A window that hides no key must give the same bits.
TEST_P(AttentionTest, AWideWindowIsNone) {
  Problem problem = MakeProblem(4, 2, 16, {{0, 150}, {40, 1}, {130, 33}});
  const Padded open = Attend(context_, problem);
  problem.shape.window = 163;
  EXPECT_TRUE(test::Identical(open, Attend(context_, problem)));
}

TEST_P(AttentionTest, ThreadsAndNeighboursDoNotChangeABit) {
  const std::vector<Span> spans = {{0, 150}, {40, 1}, {130, 33}};
  const Problem problem = MakeProblem(14, 2, 16, spans);
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

// With scores of hundreds and thousands, the softmax is nearly that of one key, and nothing must overflow.
TEST_P(AttentionTest, LargeLogits) {
  for (const double size : {30.0, 1000.0}) {
    const Problem problem = MakeProblem(4, 2, 8, {{0, 140}, {200, 1}}, size);
    ExpectAgreement(problem, Attend(context_, problem));
  }
}

// Key j is e_(j mod dim) times 1e18 and the query is e_c times 1e15, so only keys with j = c (mod dim) have a weight,
// and their weights are equal.
TEST_P(AttentionTest, HugeLogitsPickTheirKeys) {
  const int64_t dim = 16;
  for (const Span& span : {Span{0, 200}, {199, 1}}) {
    for (const float sign : {1.0f, -1.0f}) {
      Problem problem = MakeProblem(1, 1, dim, {span});
      const int64_t seen = span.past + span.count;
      for (int64_t j = 0; j < seen; ++j)
        for (int64_t d = 0; d < dim; ++d) problem.keys[0](j, d) = d == j % dim ? 1e18f : 0.0f;
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
            sum.Add(problem.values[0](j, d));
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
  const Problem good = MakeProblem(4, 2, 8, {{2, 3}});
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
  for (const Span& span : {Span{0, 40}, {39, 1}}) {
    for (const char* where : {"query", "key", "value"}) {
      const Problem problem = MakeProblem(2, 2, 8, {span});
      const int64_t last = span.count - 1;
      if (where[0] == 'q') problem.q(last, 3) = test::kNan;
      if (where[0] == 'k') problem.keys[0](5, 3) = test::kNan;
      if (where[0] == 'v') problem.values[0](5, 3) = test::kNan;
      EXPECT_TRUE(std::isnan(Attend(context_, problem)(last, 3))) << where << " of " << span.count;
    }
  }
}

}  // namespace
}  // namespace shiftrt
