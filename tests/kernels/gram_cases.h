// SPDX-License-Identifier: Apache-2.0
// The products of a token's rows, and the sums of a ridge regression, which are computed in float64.
#pragma once

#include <string>

#include "kernels/row_products.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

constexpr double kUnit64 = 0x1p-53;  // the relative error of one rounding to float64

struct RidgeSumsCase {
  int64_t n, d;                  // inputs and outputs of the regression
  std::vector<int64_t> batches;  // tokens that are added to the same sums, one call after the other
  bool weighted = false;

  std::string Name() const {
    return fmt::format("{} inputs, {} outputs, batches of {}{}", n, d, fmt::join(batches, ", "),
                       weighted ? ", weighted" : "");
  }
};

// A GPU takes inputs and outputs in multiples of 8.
inline std::vector<RidgeSumsCase> RidgeSumsCases() {
  return {{8, 8, {1, 33}}, {64, 64, {5, 32}},  {136, 136, {70}},     {136, 16, {40}},
          {24, 72, {33}},  {8, 8, {33}, true}, {72, 8, {40}, true},  {72, 72, {5, 40}, true},
          {1, 1, {1, 1}},  {7, 3, {1030, 2}},  {13, 17, {513}, true}};
}

// The tokens of a case, and their sums in float64.
struct RidgeSumsProblem {
  // The tokens of one call, dense: inputs (tokens, n), updates (tokens, d), and weights, of which some are 0.
  struct Call {
    int64_t tokens;
    std::vector<double> inputs, updates, weights;
  };

  explicit RidgeSumsProblem(const RidgeSumsCase& of) : c(of) {
    uint64_t seed = 1;
    for (const int64_t tokens : c.batches) {
      Call& call = calls.emplace_back(Call{tokens, Drawn(tokens * c.n, seed, 3.0), Drawn(tokens * c.d, seed + 1), {}});
      for (int64_t t = 0; t < tokens; ++t) call.weights.push_back(c.weighted ? 0.25 * static_cast<double>(t % 7) : 1.0);
      seed += 2;
    }
  }
  // Expects the sums of all calls in gram (n + 1, n + 1), the lower triangle of which is zero, and cross (n + 1, d).
  // `roundings` counts those of a product; additions round once per token, here too.
  void Expect(const std::vector<double>& gram, const std::vector<double>& cross, double roundings) const {
    ExpectSums("gram", gram, true, roundings);
    ExpectSums("cross", cross, false, roundings);
  }

  RidgeSumsCase c;
  std::vector<Call> calls;

 private:
  void ExpectSums(const char* name, const std::vector<double>& found, bool gram, double roundings) const {
    SCOPED_TRACE(name);
    const int64_t cols = gram ? c.n + 1 : c.d;
    ASSERT_EQ(std::ssize(found), (c.n + 1) * cols);
    const auto input = [&](const Call& call, int64_t t, int64_t i) { return i < c.n ? call.inputs[t * c.n + i] : 1.0; };
    for (int64_t i = 0; i <= c.n; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        Exact sum;
        int64_t tokens = 0;
        for (const Call& call : calls) {
          tokens += call.tokens;
          for (int64_t t = 0; t < call.tokens; ++t)
            sum.Add(call.weights[t] * input(call, t, i) * (gram ? input(call, t, j) : call.updates[t * c.d + j]));
        }
        if (gram && j < i) sum = {};
        const double tolerance = (2 * static_cast<double>(tokens) + roundings) * kUnit64 * sum.size;
        EXPECT_CLOSE(found[i * cols + j], sum.value, tolerance, i * cols + j);
      }
    }
  }
};

// Rows of two matrices, dense (tokens, n); the second is so large that float32 has no room for its squares.
struct RowProductsProblem {
  explicit RowProductsProblem(int64_t tokens, int64_t n)
      : tokens(tokens), n(n), a(Drawn(tokens * n, 1)), b(Drawn(tokens * n, 2, 1e18)) {}

  // A product that has a term that is not finite is not finite, and all others have the error of a float64 sum.
  void Expect(const std::vector<RowProducts>& found) const {
    ASSERT_EQ(std::ssize(found), tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      Exact dot, aa, bb;
      for (int64_t j = t * n; j < (t + 1) * n; ++j) {
        dot.Add(a[j] * b[j]);
        aa.Add(a[j] * a[j]);
        bb.Add(b[j] * b[j]);
      }
      for (const auto& [product, exact] : {std::pair{found[t].dot, dot}, {found[t].aa, aa}, {found[t].bb, bb}}) {
        EXPECT_EQ(std::isfinite(product), std::isfinite(exact.value)) << "token " << t;
        if (!std::isfinite(exact.value)) continue;
        EXPECT_CLOSE(product, exact.value, std::min(2 * static_cast<double>(n) * kUnit64, 1e-13) * exact.size, t);
      }
    }
  }

  int64_t tokens, n;
  std::vector<double> a, b;
};

inline std::vector<RowProductsProblem> RowProductsProblems() {
  std::vector<RowProductsProblem> problems;
  for (const int64_t n : {8, 520, 1032}) problems.emplace_back(4, n);
  RowProductsProblem& broken = problems.emplace_back(3, 1032);
  broken.b[broken.n + 700] = std::numeric_limits<double>::infinity();
  broken.b[2 * broken.n + 8] = kNan;
  return problems;
}

}  // namespace shiftrt::test
