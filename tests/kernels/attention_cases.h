// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over packed sequences, and its gradient.
#pragma once

#include <string>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

// `count` queries of a sequence after `past` tokens, whose keys are in its cache.
struct AttentionSpan {
  int64_t past, count;
};

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  std::vector<AttentionSpan> spans;
  double size = 1;  // standard deviation of the queries
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;  // each head has one

  // True if every sequence has one query, as in decoding.
  bool single() const {
    return std::all_of(spans.begin(), spans.end(), [](const AttentionSpan& span) { return span.count == 1; });
  }
  std::string Name() const {
    std::string text = fmt::format("{} of {} heads of {}, size {}, window {}, cap {}{}, past + count:", kv_heads, heads,
                                   head_dim, size, window, soft_cap, sinks ? ", sinks" : "");
    for (const auto& [past, count] : spans) text += fmt::format(" {} + {}", past, count);
    return text;
  }
};

inline std::vector<AttentionCase> AttentionCases() {
  std::vector<AttentionCase> cases;
  using Group = std::pair<int64_t, int64_t>;
  // Every head dimension and group.
  for (const int64_t dim : {4, 6, 8, 20, 64, 80, 96, 128, 256})
    for (const auto& [heads, kv_heads] : {Group{1, 1}, {3, 3}, {8, 2}, {7, 1}, {14, 2}, {15, 5}})
      cases.push_back({heads, kv_heads, dim, {{0, 9}, {5, 1}, {0, 1}, {3, 4}}});
  // Numbers of queries and keys around multiples of the sizes of blocks, with and without earlier tokens.
  for (const auto& [heads, kv_heads] : {Group{2, 2}, {7, 1}})
    for (const AttentionSpan& span : std::initializer_list<AttentionSpan>{{0, 63},
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
                                                                          {300, 200}})
      cases.push_back({heads, kv_heads, 12, {span}});
  for (const int64_t dim : {64, 80, 96, 128, 256}) {
    cases.push_back({2, 1, dim, {{0, 1}, {0, 65}, {0, 17}}});
    cases.push_back({2, 2, dim, {{0, 70}}});
    cases.push_back({1, 1, dim, {{100, 40}, {31, 1}}});
    // One query each.
    cases.push_back({2, 2, dim, {{0, 1}, {6, 1}}});
    cases.push_back({6, 2, dim, {{69, 1}}});
    cases.push_back({7, 1, dim, {{130, 1}, {1, 1}}});
  }
  cases.push_back({6, 2, 64, {{0, 64}, {64, 64}, {0, 128}}});
  for (const int64_t dim : {64, 128, 256}) cases.push_back({1, 1, dim, {{5, 150}, {0, 129}, {300, 3}}});
  cases.push_back({1, 1, 64, {{127, 128}, {128, 256}, {0, 385}}});
  cases.push_back({12, 1, 64, {{32, 1}}});
  cases.push_back({12, 1, 64, {{149, 1}}});
  cases.push_back({2, 1, 128, {{2, 1}}});
  cases.push_back({6, 2, 64, {{0, 1}, {63, 1}, {64, 1}, {199, 1}, {499, 1}}});
  // Windows of one key, within a block of keys, across several and wider than the sequence; soft caps of the scores.
  for (const int64_t window : {0, 1, 5, 64, 70, 129, 1000}) {
    for (const float cap : {0.0f, 2.0f, 3.0f}) {
      if (window == 0 && cap == 0) continue;
      for (const auto& [heads, kv_heads] : {Group{2, 2}, {4, 1}})
        for (const AttentionSpan& span :
             std::initializer_list<AttentionSpan>{{0, 9}, {40, 1}, {0, 140}, {300, 1}, {250, 70}, {130, 300}})
          if (cap != 2) cases.push_back({heads, kv_heads, 12, {span}, 4, window, cap});
      if (cap == 3) continue;
      cases.push_back({2, 1, 64, {{0, 1}, {0, 70}, {100, 40}, {31, 1}}, 2, window, cap});
      cases.push_back({1, 1, 256, {{90, 30}}, 1, window, cap});
      cases.push_back({1, 1, 128, {{5, 150}}, 1, window, cap});
      cases.push_back({2, 2, 96, {{0, 70}}, 3, window, cap});
      cases.push_back({2, 2, 64, {{0, 1}, {3, 1}, {6, 1}, {69, 1}}, 2, window, cap});
      cases.push_back({4, 1, 96, {{130, 1}, {1, 1}}, 2, window, cap});
      cases.push_back({7, 1, 256, {{39, 1}}, 2, window, cap});
    }
  }
  // Scores of hundreds and thousands: the softmax is nearly that of one key, and nothing may overflow.
  cases.push_back({1, 1, 128, {{0, 80}}, 100});
  for (const double size : {30.0, 1000.0}) cases.push_back({4, 2, 8, {{0, 140}, {200, 1}}, size});
  return cases;
}

// Sequences without a past.
inline std::vector<AttentionCase> AttentionGradientCases() {
  std::vector<AttentionCase> cases;
  using Group = std::pair<int64_t, int64_t>;
  const auto add = [&](int64_t heads, int64_t kv_heads, int64_t dim, const std::vector<int64_t>& lengths,
                       double size = 1, int64_t window = 0, float cap = 0) {
    cases.push_back({heads, kv_heads, dim, {}, size, window, cap});
    for (const int64_t length : lengths) cases.back().spans.push_back({0, length});
  };
  for (const int64_t dim : {4, 6, 8, 20, 64, 80, 96, 128, 256}) {
    for (const auto& [heads, kv_heads] : {Group{1, 1}, {3, 3}, {9, 3}, {7, 1}, {14, 2}})
      if (dim < 128 || heads < 9) add(heads, kv_heads, dim, {9, 1, 1, 23, 4});
    add(2, 1, dim, {1, 37, 17});
    add(2, 2, dim, {35});
  }
  for (const auto& [heads, kv_heads] : {Group{2, 2}, {6, 2}})
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{63}, {64}, {65}, {127, 1, 129}, {260, 0, 31, 97}, {300}})
      add(heads, kv_heads, 12, lengths);
  add(6, 2, 64, {64, 70, 32});
  for (const int64_t dim : {64, 256}) add(1, 1, dim, {150});
  add(3, 1, 64, {100, 5});
  for (const int64_t window : {0, 1, 5, 64, 129, 1000}) {
    for (const float cap : {0.0f, 2.0f, 3.0f}) {
      if (window == 0 && cap == 0) continue;
      for (const auto& [heads, kv_heads] : {Group{2, 2}, {4, 1}})
        for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{9, 1, 40}, {140, 3, 75}, {290}})
          if (cap != 2) add(heads, kv_heads, 12, lengths, 2, window, cap);
      if (cap == 3) continue;
      add(2, 1, 64, {1, 90, 31}, 2, window, cap);
      add(1, 1, 128, {40}, 1, window, cap);
    }
  }
  add(2, 2, 256, {40}, 3, 7, 2);
  add(1, 1, 128, {50}, 30);  // all weights but one vanish
  add(4, 2, 8, {140, 5}, 300);
  return cases;
}

// Heads with sinks: prefill, decoding, unlike lengths, windows and scores of several sizes.
inline std::vector<AttentionCase> AttentionSinkCases() {
  std::vector<AttentionCase> cases;
  for (const double size : {0.1, 1.0, 30.0})
    for (const int64_t window : {0, 5, 70})
      for (const float cap : {0.0f, 3.0f})
        cases.push_back({8, 2, 16, {{0, 140}, {40, 1}, {0, 1}, {130, 33}, {7, 2}, {299, 1}}, size, window, cap, true});
  cases.push_back({8, 1, 64, {{0, 20}, {128, 1}, {3, 1}}, 1, 128, 0, true});
  cases.push_back({3, 3, 64, {{0, 90}}, 1, 0, 0, true});
  return cases;
}
inline std::vector<AttentionCase> AttentionSinkGradientCases() {
  std::vector<AttentionCase> cases = AttentionSinkCases();
  for (AttentionCase& c : cases)
    for (AttentionSpan& span : c.spans) span.past = 0;
  return cases;
}

// The inputs of a case, and its results in float64. `gap` rows after the keys of each sequence are NaN.
struct AttentionProblem {
  struct Sequence {
    int64_t begin, count, past, first_row;  // its queries, and the row of its first key
  };

  explicit AttentionProblem(const AttentionCase& c, DType type = DType::kFloat32, int64_t gap = 2)
      : c(c), scale(1 / std::sqrt(static_cast<float>(c.head_dim))) {
    for (const auto& [past, count] : c.spans) {
      sequences.push_back({tokens, count, past, rows});
      tokens += count;
      rows += past + count + gap;
    }
    q = Drawn(tokens * q_dim(), 1, c.size, type);
    keys = Drawn(rows * kv_dim(), 2, 1, type);
    values = Drawn(rows * kv_dim(), 3, 1, type);
    dout = Drawn(tokens * q_dim(), 4, 1, type);
    if (c.sinks) sinks = Drawn(c.heads, 5, 3);
    for (const Sequence& s : sequences) Hide(s.first_row + s.past + s.count, gap);
  }
  // Makes so many rows of keys and values NaN.
  void Hide(int64_t first, int64_t count) {
    for (std::vector<double>* matrix : {&keys, &values})
      std::fill_n(matrix->begin() + first * kv_dim(), count * kv_dim(), std::nan(""));
  }
  // Those of float32, which the sinks are exactly.
  std::vector<float> Sinks() const { return {sinks.begin(), sinks.end()}; }
  // The same for keys before the windows of all queries, which the CPU does not read.
  void HideUnseen() {
    for (const Sequence& s : sequences)
      if (c.window > 0) Hide(s.first_row, std::max<int64_t>(0, s.past + 1 - c.window));
  }
  int64_t q_dim() const { return c.heads * c.head_dim; }
  int64_t kv_dim() const { return c.kv_heads * c.head_dim; }
  int64_t KvColumn(int64_t head) const { return head / (c.heads / c.kv_heads) * c.head_dim; }

  // The keys that a query sees, with their scores and weights.
  struct Seen {
    int64_t first;  // the row of the first
    std::vector<double> scores, weights;
    double log_sum = 0;
    double score_size = 0,
           score_most = 0;  // the largest sum of the absolute values of a score's terms; the largest |score|
  };
  Seen See(const Sequence& s, int64_t i, int64_t head) const {
    const int64_t end = s.past + i + 1, begin = c.window > 0 ? std::max<int64_t>(0, end - c.window) : 0;
    Seen seen{s.first_row + begin, {}, {}};
    for (int64_t j = begin; j < end; ++j) {
      Exact score;
      for (int64_t d = 0; d < c.head_dim; ++d)
        score.Add(q[(s.begin + i) * q_dim() + head * c.head_dim + d] *
                  keys[(s.first_row + j) * kv_dim() + KvColumn(head) + d] * static_cast<double>(scale));
      if (c.soft_cap > 0) score.value = c.soft_cap * std::tanh(score.value / static_cast<double>(c.soft_cap));
      seen.scores.push_back(score.value);
      seen.score_size = std::max(seen.score_size, score.size);
      seen.score_most = std::max(seen.score_most, std::abs(score.value));
    }
    const double most = *std::max_element(seen.scores.begin(), seen.scores.end());
    double sum = sinks.empty() ? 0 : std::exp(sinks[head] - most);
    for (const double score : seen.scores) sum += std::exp(score - most);
    seen.log_sum = most + std::log(sum);
    for (const double score : seen.scores) seen.weights.push_back(std::exp(score - seen.log_sum));
    return seen;
  }
  std::vector<Exact> Attended(const Seen& seen, int64_t head) const {
    std::vector<Exact> out(c.head_dim);
    for (size_t j = 0; j < seen.weights.size(); ++j)
      for (int64_t d = 0; d < c.head_dim; ++d)
        out[d].Add(seen.weights[j] * values[(seen.first + static_cast<int64_t>(j)) * kv_dim() + KvColumn(head) + d]);
    return out;
  }
  // Calls body(token, head, index of the first element of the token's head in q, what it sees).
  template <typename Body>
  void ForEachHead(const Body& body) const {
    for (const Sequence& s : sequences)
      for (int64_t i = 0; i < s.count; ++i)
        for (int64_t head = 0; head < c.heads; ++head)
          body(s.begin + i, head, (s.begin + i) * q_dim() + head * c.head_dim, See(s, i, head));
  }

  // The relative errors of the numbers from which an implementation computes the gradients.
  struct Errors {
    double weight;   // a weight's
    double slope;    // that of a score's gradient, without the next
    double product;  // that of a product of dout with a value, relative to the size of its terms
  };
  struct Bounded {
    Exact sum;
    double tolerance = 0;
    void Add(double left, double left_tolerance, double right) {
      sum.Add(left * right);
      tolerance += left_tolerance * std::abs(right);
    }
  };
  struct Gradients {
    std::vector<Bounded> dq, dkeys, dvalues;
  };
  // `out`: what the implementation was given as the result of the forward pass; null: the exact one.
  template <typename ErrorsOf>
  Gradients GradientsExactly(const ErrorsOf& errors_of, const std::vector<double>* out = nullptr) const {
    Gradients g{std::vector<Bounded>(q.size()), std::vector<Bounded>(keys.size()), std::vector<Bounded>(keys.size())};
    ForEachHead([&](int64_t, int64_t head, int64_t at, const Seen& seen) {
      const Errors errors = errors_of(seen);
      const auto row_of = [&](size_t j) { return (seen.first + static_cast<int64_t>(j)) * kv_dim() + KvColumn(head); };
      std::vector<Exact> products(seen.weights.size());
      Exact mean;
      for (size_t j = 0; j < products.size(); ++j) {
        for (int64_t d = 0; d < c.head_dim; ++d) products[j].Add(dout[at + d] * values[row_of(j) + d]);
        mean.value += seen.weights[j] * products[j].value;
        mean.size += seen.weights[j] * products[j].size;
      }
      if (out != nullptr) {
        mean.value = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) mean.value += (*out)[at + d] * dout[at + d];
      }
      for (size_t j = 0; j < products.size(); ++j) {
        const double tanh = c.soft_cap > 0 ? seen.scores[j] / static_cast<double>(c.soft_cap) : 0, w = seen.weights[j];
        const double ds = w * (products[j].value - mean.value) * static_cast<double>(scale) * (1 - tanh * tanh);
        const double ds_error = w * static_cast<double>(scale) *
                                    ((std::abs(products[j].value) + std::abs(mean.value)) * errors.slope +
                                     (products[j].size + mean.size) * errors.product) +
                                1e-37;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const int64_t row = row_of(j) + d;
          g.dq[at + d].Add(ds, ds_error, keys[row]);
          g.dkeys[row].Add(ds, ds_error, q[at + d]);
          g.dvalues[row].Add(w, w * errors.weight + 1e-37, dout[at + d]);
        }
      }
    });
    return g;
  }

  AttentionCase c;
  float scale;
  std::vector<Sequence> sequences;
  int64_t tokens = 0, rows = 0;
  std::vector<double> q, dout;       // (tokens, heads * head_dim)
  std::vector<double> keys, values;  // (rows, kv_heads * head_dim)
  std::vector<double> sinks;         // (heads), or empty
};

inline void ExpectClose(const char* name, const std::vector<double>& found,
                        const std::vector<AttentionProblem::Bounded>& expected, int64_t terms) {
  SCOPED_TRACE(name);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_CLOSE(found[i], expected[i].sum.value,
                 1.01 * expected[i].tolerance + SumTolerance(terms, expected[i].sum.size) + 1e-30,
                 static_cast<int64_t>(i));
}

}  // namespace shiftrt::test
