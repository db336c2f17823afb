// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kTokenGrain = 16;

void Softmax(std::span<const float> logits, float* p) {
  const float most = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += p[i] = std::exp(logits[i] - most);
  for (size_t i = 0; i < logits.size(); ++i) p[i] /= sum;
}

using Ranked = std::pair<float, int64_t>;

// The experts with the `active` largest probabilities. `ranked` is scratch memory. torch.topk takes the first algorithm
// for a small share, and a NaN for the largest number.
void Choose(std::span<const float> p, int64_t active, std::vector<Ranked>& ranked) {
  ranked.clear();
  for (size_t i = 0; i < p.size(); ++i) ranked.emplace_back(p[i], static_cast<int64_t>(i));
  const auto above = [](const Ranked& a, const Ranked& b) {
    return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
  };
  const auto last = ranked.begin() + active;
  if (active * 64 <= std::ssize(p)) {
    std::partial_sort(ranked.begin(), last, ranked.end(), above);
  } else {
    std::nth_element(ranked.begin(), last - 1, ranked.end(), above);
  }
}

void CheckSlots(const ExpertRouting& routing, const MatrixView<const float>& x) {
  Check(x.rows == routing.slots(), "a matrix of {} rows for {} slots of experts", x.rows, routing.slots());
}

// Calls body(token) for all tokens, on several threads.
template <typename Body>
void ForEachToken(const Context& context, const ExpertRouting& routing, const Body& body) {
  ParallelFor(context, routing.tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) body(token);
  });
}

}  // namespace

ExpertRouting RouteToExperts(const Context& context, MatrixView<const float> logits, int64_t active, bool normalised) {
  const int64_t tokens = logits.rows, experts = logits.cols;
  Check(active >= 1 && active <= experts, "{} of {} experts are active, expected 1 to {}", active, experts, experts);
  ExpertRouting routing{tokens, experts, active};
  routing.probabilities.resize(tokens * experts);
  std::vector<int64_t> chosen(tokens * active);  // the experts of each token, which ascend
  ForEachToken(context, routing, [&](int64_t token) {
    const std::span<const float> row(logits.row(token), static_cast<size_t>(experts));
    float* const p = routing.probabilities.data() + token * experts;
    Softmax(row, p);
    std::vector<Ranked> ranked;
    Choose({p, static_cast<size_t>(experts)}, active, ranked);
    int64_t* const of_token = chosen.data() + token * active;
    for (int64_t i = 0; i < active; ++i) of_token[i] = ranked[i].second;
    std::sort(of_token, of_token + active);
  });
  routing.offsets.assign(experts + 1, 0);
  for (const int64_t expert : chosen) ++routing.offsets[expert + 1];
  for (int64_t expert = 0; expert < experts; ++expert) routing.offsets[expert + 1] += routing.offsets[expert];
  std::vector<int64_t> next(routing.offsets.begin(), routing.offsets.end() - 1);
  routing.token_of.resize(tokens * active);
  routing.slots_of.resize(tokens * active);
  routing.weights.resize(tokens * active);
  for (int64_t token = 0; token < tokens; ++token) {
    float sum = 0;
    for (int64_t i = 0; i < active; ++i) {
      const int64_t expert = chosen[token * active + i], slot = next[expert]++;
      routing.token_of[slot] = token;
      routing.slots_of[token * active + i] = slot;
      sum += routing.weights[slot] = routing.probabilities[token * experts + expert];
    }
    for (int64_t i = 0; normalised && i < active; ++i) routing.weights[routing.slots_of[token * active + i]] /= sum;
  }
  return routing;
}

void SumOverExperts(const Context& context, const ExpertRouting& routing, bool weighted, MatrixView<const float> x,
                    MatrixView<float> y) {
  CheckSlots(routing, x);
  Check(y.rows == routing.tokens && y.cols == x.cols, "a sum over ({}, {}) into ({}, {}) for {} tokens does not fit",
        x.rows, x.cols, y.rows, y.cols, routing.tokens);
  // The columns are divided too, as one token would have one thread otherwise.
  constexpr int64_t kColumns = 512;
  const int64_t parts = (y.cols + kColumns - 1) / kColumns;
  ParallelFor(context, routing.tokens * parts, kTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t token = part / parts, first = part % parts * kColumns, last = std::min(y.cols, first + kColumns);
      float* const to = y.row(token);
      std::fill(to + first, to + last, 0.0f);
      for (int64_t i = 0; i < routing.active; ++i) {
        const int64_t slot = routing.slots_of[token * routing.active + i];
        const float weight = weighted ? routing.weights[slot] : 1.0f;
        const float* const from = x.row(slot);
        for (int64_t j = first; j < last; ++j) to[j] += weight * from[j];
      }
    }
  });
}

void ExpertWeightGradient(const Context& context, const ExpertRouting& routing, MatrixView<const float> activation,
                          MatrixView<float> g, std::span<float> dweights) {
  CheckSlots(routing, activation);
  CheckSlots(routing, g);
  ParallelFor(context, routing.slots(), kTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      double sum = 0;
      for (int64_t j = 0; j < g.cols; ++j) {
        sum += static_cast<double>(activation(slot, j)) * g(slot, j);
        g(slot, j) *= routing.weights[slot];
      }
      dweights[slot] += static_cast<float>(sum);
    }
  });
}

void ExpertBiasWeightGradient(const Context& context, const TensorView& b, MatrixView<const float> dy,
                              std::span<float> dweights) {
  Check(b.elements() == dy.cols && std::ssize(dweights) == dy.rows,
        "a bias of {} elements and gradients of ({}, {}) for {} slots", b.elements(), dy.rows, dy.cols,
        dweights.size());
  const std::vector<float> bias = Widened(b);
  ParallelFor(context, dy.rows, kTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      double sum = 0;
      for (int64_t j = 0; j < dy.cols; ++j) sum += static_cast<double>(bias[j]) * dy(slot, j);
      dweights[slot] += static_cast<float>(sum);
    }
  });
}

void ScaleByExpertWeights(const Context& context, const ExpertRouting& routing, MatrixView<float> x) {
  CheckSlots(routing, x);
  ParallelFor(context, routing.slots(), kTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot)
      for (int64_t j = 0; j < x.cols; ++j) x(slot, j) *= routing.weights[slot];
  });
}

// With p the softmax and S the sum of p over the token's slots, a weight is w = p or p / S. So
// dp = dw, or (dw - sum(dw w)) / S, for the chosen experts and 0 for others; and dlogits = p (dp - sum(dp p)).
void RouteToExpertsGradient(const Context& context, const ExpertRouting& routing, bool normalised,
                            std::span<const float> dweights, MatrixView<float> dlogits) {
  Check(dlogits.rows == routing.tokens && dlogits.cols == routing.experts,
        "a gradient of ({}, {}) for {} tokens and {} experts", dlogits.rows, dlogits.cols, routing.tokens,
        routing.experts);
  std::vector<int64_t> expert_of(routing.slots());
  for (int64_t expert = 0; expert < routing.experts; ++expert)
    std::fill(expert_of.begin() + routing.offsets[expert], expert_of.begin() + routing.offsets[expert + 1], expert);
  ForEachToken(context, routing, [&](int64_t token) {
    const float* const p = routing.probabilities.data() + token * routing.experts;
    const std::span<const int64_t> slots(routing.slots_of.data() + token * routing.active,
                                         static_cast<size_t>(routing.active));
    double total = 0, mean = 0;
    for (const int64_t slot : slots) {
      total += p[expert_of[slot]];
      mean += static_cast<double>(dweights[slot]) * routing.weights[slot];
    }
    float* const to = dlogits.row(token);
    std::fill_n(to, routing.experts, 0.0f);
    double sum = 0;
    for (const int64_t slot : slots) {
      const double dp = normalised ? (dweights[slot] - mean) / total : dweights[slot];
      sum += dp * p[expert_of[slot]];
      to[expert_of[slot]] = static_cast<float>(dp);
    }
    for (int64_t expert = 0; expert < routing.experts; ++expert)
      to[expert] = static_cast<float>(p[expert] * (to[expert] - sum));
  });
}

}  // namespace shiftrt
