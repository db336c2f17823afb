// SPDX-License-Identifier: Apache-2.0
// Products of tokens with weights, and the steps around them: a norm before, and a bias, an addition or a gated unit
// after.
#pragma once

#include <string>

#include "tests/kernels/gate_cases.h"
#include "tests/kernels/product_cases.h"

namespace shiftrt::test {

enum class Epilogue { kNothing, kAddition, kSilu, kGeluTanh };

struct FusedProductCase {
  int64_t tokens, rows, cols;  // the weights are (rows, cols); those of a gated unit are the gate's, then the others
  Epilogue epilogue;
  bool normed = false, biased = false;
  double size = 1;  // standard deviation of the weights

  bool gated() const { return epilogue == Epilogue::kSilu || epilogue == Epilogue::kGeluTanh; }
  int64_t outputs() const { return gated() ? rows / 2 : rows; }
  std::string Name() const {
    return fmt::format("{} tokens, weights ({}, {}){}{}{}", tokens, rows, cols, normed ? ", normed" : "",
                       biased ? ", biased" : "",
                       std::array{"", ", added", ", silu", ", gelu"}[static_cast<size_t>(epilogue)]);
  }
};

inline std::vector<FusedProductCase> FusedProductCases() {
  std::vector<FusedProductCase> cases;
  // One token. Widths of a vector, of parts of a warp's loads and of several of them; widths that no vector divides are
  // those of the CPU.
  for (const int64_t cols : {7, 8, 264, 300, 1096})
    for (const int64_t rows : {2, 74})
      for (const bool normed : {false, true})
        for (const bool biased : {false, true})
          for (const Epilogue epilogue :
               {Epilogue::kNothing, Epilogue::kAddition, Epilogue::kSilu, Epilogue::kGeluTanh})
            cases.push_back({1, rows, cols, epilogue, normed, biased});
  cases.push_back({1, 1, 64, Epilogue::kNothing, true});
  for (const Epilogue epilogue : {Epilogue::kNothing, Epilogue::kAddition})
    cases.push_back({1, 75, 264, epilogue, true, true});
  // Gated units of many tokens.
  const auto gated = [&](int64_t tokens, int64_t hidden, int64_t intermediate, Epilogue epilogue, bool biased) {
    cases.push_back({tokens, 2 * intermediate, hidden, epilogue, false, biased, 2 / std::sqrt(hidden)});
  };
  for (const Epilogue epilogue : {Epilogue::kSilu, Epilogue::kGeluTanh})
    for (const bool biased : {false, true})
      for (const int64_t hidden : {64, 128}) gated(65, hidden, 72, epilogue, biased);
  // Tokens that fill a tile or half of it, or are one too few or too many.
  for (const int64_t tokens : {1, 63, 64, 65, 128, 129, 300}) {
    gated(tokens, 64, 136, Epilogue::kSilu, true);
    gated(tokens, 64, 8, Epilogue::kGeluTanh, false);
  }
  // Intermediate sizes that end within a tile of columns.
  for (const int64_t intermediate : {8, 120, 128, 136, 264}) {
    gated(70, 64, intermediate, Epilogue::kGeluTanh, true);
    gated(130, 64, intermediate, Epilogue::kSilu, true);
  }
  // From one step of a sum to more than are copied ahead.
  for (const int64_t hidden : {64, 128, 192, 256, 320, 576}) {
    gated(33, hidden, 40, Epilogue::kSilu, false);
    gated(130, hidden, 136, Epilogue::kSilu, true);
  }
  return cases;
}

// The inputs of a case, and its results in float64.
struct FusedProductProblem {
  static constexpr float kEps = 1e-5f;

  // `weights`, `inputs`: the types of W and x.
  explicit FusedProductProblem(const FusedProductCase& c, DType weights, DType inputs = DType::kFloat32)
      : c(c),
        w(Drawn(c.rows * c.cols, 1, c.size, weights)),
        x(Drawn(c.tokens * c.cols, 2, 1, inputs)),
        norm(c.normed ? Drawn(c.cols, 3) : std::vector<double>(c.cols, 1)),
        bias(c.biased ? Drawn(c.rows, 4) : std::vector<double>(c.rows)),
        before(Drawn(c.tokens * c.outputs(), 5)) {
    Multiply();
  }

  // Computes the products, again if the weights were replaced.
  void Multiply() {
    std::vector<double> rows = x;
    for (int64_t t = 0; t < c.tokens; ++t) {
      double squares = 0;
      for (int64_t k = 0; k < c.cols; ++k) squares += x[t * c.cols + k] * x[t * c.cols + k];
      const double scale = c.normed ? 1 / std::sqrt(squares / static_cast<double>(c.cols) + 1e-5) : 1;
      for (int64_t k = 0; k < c.cols; ++k) rows[t * c.cols + k] *= scale * norm[k];
    }
    products = Product({c.tokens, c.rows, c.cols}, rows, Transposed(w, c.rows, c.cols));
    normed = std::move(rows);
    for (size_t i = 0; i < products.size(); ++i) products[i].Add(bias[i % c.rows]);
  }

  // Expects the results (tokens, outputs) in their type. A sum has so many roundings relative to the size of its terms,
  // and an activation, whose own roundings are fewer than those, passes its error on with a slope below 1.2.
  void Expect(const std::vector<double>& found, double roundings, DType result = DType::kFloat32) const {
    SCOPED_TRACE(c.Name());
    ASSERT_EQ(std::ssize(found), c.tokens * c.outputs());
    for (int64_t i = 0; i < std::ssize(found); ++i) {
      const int64_t at = i / c.outputs() * c.rows + i % c.outputs();
      double value = products[at].value, tolerance = roundings * kUnit * products[at].size;
      if (c.epilogue == Epilogue::kAddition) {
        value += before[i];
        tolerance += kUnit * std::abs(value);
      } else if (c.gated()) {
        const Exact& up = products[at + c.outputs()];
        const double active =
            ActivationAt(c.epilogue == Epilogue::kSilu ? Activation::kSilu : Activation::kGeluTanh, value).value;
        const double up_error = roundings * kUnit * up.size;
        tolerance = 1.2 * tolerance * (std::abs(up.value) + up_error) + std::abs(active) * up_error + 0x1p-25;
        value = active * up.value;
      }
      if (result != DType::kFloat32) tolerance += UnitOf(result) * std::abs(value);
      EXPECT_CLOSE(found[i], value, tolerance, i);
    }
  }

  FusedProductCase c;
  std::vector<double> w, x;        // (rows, cols), (tokens, cols)
  std::vector<double> norm, bias;  // (cols), ones without a norm; (rows), zeros without a bias
  std::vector<double> normed;      // x as it meets the weights
  std::vector<double> before;      // (tokens, outputs): the numbers that the product is added to
  std::vector<Exact> products;     // (tokens, rows), with the bias
};

}  // namespace shiftrt::test
