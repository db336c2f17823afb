// SPDX-License-Identifier: Apache-2.0
// xIELU and its gradients against float64, and the formulas of the slopes against central differences.
#include "kernels/xielu.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;

// The result for x with the numbers in `n`: alpha_p, alpha_n, beta and eps.
double Value(const std::array<double, 4>& n, double x) {
  const double a = std::log1p(std::exp(n[0])), b = n[2] + std::log1p(std::exp(n[1]));
  return x > 0 ? a * x * x + n[2] * x : b * (std::expm1(std::min(x, n[3])) - x) + n[2] * x;
}
// The sum of the absolute values of its terms.
double SizeOfValue(const std::array<double, 4>& n, double x) {
  if (x > 0) return Value(n, x);
  const double b = n[2] + std::log1p(std::exp(n[1]));
  return b * (std::abs(std::expm1(std::min(x, n[3]))) + std::abs(x)) + n[2] * std::abs(x);
}
std::array<double, 4> Of(const XieluNumbers& n) { return {n.alpha_p, n.alpha_n, n.beta, n.eps}; }
// The change per unit of x, of alpha_p or of alpha_n.
double Slope(std::array<double, 4> n, double x, int which) {
  const double step = 1e-6;
  const auto at = [&](double by) {
    std::array<double, 4> moved = n;
    if (which > 0) moved[which - 1] += by;
    return Value(moved, which == 0 ? x + by : x);
  };
  return (at(step) - at(-step)) / (2 * step);
}

class XieluTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(XieluTest);

TEST_P(XieluTest, AgreesWithFloat64ForwardsAndBack) {
  // The released numbers before the training, and ones that show whether they are mixed up. Between eps and 0, where a
  // large eps reaches, the exponential is constant.
  for (const XieluNumbers& numbers : {XieluNumbers{0.2f, -1.05f, 0.5f, -1e-6f}, XieluNumbers{1.4f, 0.7f, 0.3f, -0.5f}})
    for (const double size : {0.01, 1.0, 20.0}) {
      const int64_t rows = 5, cols = 300;
      const std::vector<double> x = test::Drawn(rows * cols, 1, size), dy = test::Drawn(rows * cols, 2);
      const Padded in = Padded::Of(rows, cols, x), out = in.Copy(), dx = Padded::Of(rows, cols, dy), again = dx.Copy();
      Xielu(context_, numbers, out.view());
      const XieluNumberGradients found = XieluGradient(On(1), numbers, in.view(), dx.view());
      const XieluNumberGradients threaded = XieluGradient(On(3), numbers, in.view(), again.view());
      EXPECT_TRUE(test::Identical(dx, again) && found.alpha_p == threaded.alpha_p && found.alpha_n == threaded.alpha_n);
      const std::vector<double> of_x = dx.Values();
      std::vector<Exact> values;
      std::array<double, 2> sums{}, sizes{};
      for (size_t i = 0; i < x.size(); ++i) {
        values.push_back({Value(Of(numbers), x[i]), SizeOfValue(Of(numbers), x[i])});
        const bool smooth = std::abs(x[i] - static_cast<double>(numbers.eps)) > 1e-5 && std::abs(x[i]) > 1e-5;
        const double slope = smooth ? Slope(Of(numbers), x[i], 0) : of_x[i] / dy[i];
        EXPECT_NEAR(of_x[i], dy[i] * slope, 1e-5 * std::abs(dy[i]) * (1 + size)) << i;
        for (int which = 1; which <= 2; ++which) {
          const double term = dy[i] * Slope(Of(numbers), x[i], which);
          sums[which - 1] += term;
          sizes[which - 1] += std::abs(term);
        }
      }
      test::ExpectClose("value", out.Values(), values, {8});
      EXPECT_NEAR(found.alpha_p, sums[0], 1e-5 * sizes[0]);
      EXPECT_NEAR(found.alpha_n, sums[1], 1e-5 * sizes[1] + 1e-9 * static_cast<double>(x.size()));
    }
}

TEST_P(XieluTest, KeepsNotANumberAndRefusesWhatDoesNotFit) {
  const Padded nan(1, 3);
  Xielu(context_, {1, 1, 0.5f, -1e-6f}, nan.view());
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(nan(0, i)));
  EXPECT_THROW(XieluGradient(context_, {}, nan.view(), Padded(1, 4).view()), Error);
}

}  // namespace
}  // namespace shiftrt
