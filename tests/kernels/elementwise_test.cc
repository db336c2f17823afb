// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::Stored;

class ElementwiseTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(ElementwiseTest);

TEST_P(ElementwiseTest, EmbedWidensRowsExactly) {
  const std::vector<int32_t> tokens = {6, 0, 3, 3, 1, 6};
  for (const DType dtype : test::kStoredTypes) {
    for (const int64_t hidden : {1, 33, 128}) {
      const Stored table = Stored::Normal(dtype, {7, hidden}, 1);
      const Padded out(6, hidden);
      Embed(context_, tokens, table.view, out.view());
      for (int64_t t = 0; t < 6; ++t)
        for (int64_t j = 0; j < hidden; ++j) ASSERT_EQ(out(t, j), table.values[tokens[t] * hidden + j]);
      EXPECT_TRUE(out.PaddingIsUntouched());
      Embed(context_, tokens, table.view, out.view(), 6.9375f);
      for (int64_t t = 0; t < 6; ++t)
        for (int64_t j = 0; j < hidden; ++j)
          ASSERT_EQ(out(t, j), static_cast<float>(table.values[tokens[t] * hidden + j]) * 6.9375f);
    }
  }
}

TEST_P(ElementwiseTest, EmbedRefusesForeignTokens) {
  const Stored table = Stored::Normal(DType::kFloat16, {7, 4}, 1);
  for (const int32_t token : {-1, 7, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
    EXPECT_THROW(Embed(context_, std::vector<int32_t>{0, token}, table.view, Padded(2, 4).view()), Error) << token;
  EXPECT_THROW(Embed(context_, std::vector<int32_t>{0}, table.view, Padded(2, 4).view()), Error);
  EXPECT_THROW(Embed(context_, std::vector<int32_t>{0}, table.view, Padded(1, 3).view()), Error);
}

// The relative error of silu is that of the exponential (3e-7) plus a few roundings. If the logistic function is below
// the smallest normal float32, its computed value may be anything between 0 and that number.
void ExpectSwiGlu(float gate, float up, float found) {
  const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(gate)));
  const double expected = gate * sigmoid * up, scale = std::abs(static_cast<double>(gate) * up);
  ASSERT_NEAR(found, expected, (3e-7 + 6 * test::kUnit) * std::abs(expected) + 0x1p-126 * scale + 0x1p-149)
      << gate << " " << up;
}

TEST_P(ElementwiseTest, SwiGluOfAnySize) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {3, 67}, {5, 3000}, {40, 300}}) {
    for (const double size : {0.01, 1.0, 20.0, 1000.0}) {
      const Padded gate = Padded::Normal(rows, cols, 1, size), up = Padded::Normal(rows, cols, 2), out = gate.Copy();
      SwiGlu(context_, out.view(), up.view());
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) ExpectSwiGlu(gate(i, j), up(i, j), out(i, j));
      if (HasFatalFailure()) return;
      EXPECT_TRUE(out.PaddingIsUntouched());
      const Padded threaded = gate.Copy();
      SwiGlu(On(3), threaded.view(), up.view());
      EXPECT_TRUE(test::Identical(out, threaded));
    }
  }
}

TEST_P(ElementwiseTest, SwiGluOfExtremes) {
  std::vector<float> values = {0, -0.0f, 1e-40f, 1e-20f, 1e-8f, 0.5f, 1, 16, 17, 50, 80, 1e4f, 1e10f, 1e30f};
  for (float x = 86; x < 90; x += 0.0625f) values.push_back(x);  // around the overflow of the exponential in float32
  for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
  const auto n = static_cast<int64_t>(values.size());
  const Padded gate(1, n), up(1, n);
  for (int64_t j = 0; j < n; ++j) gate(0, j) = values[j], up(0, j) = -1.5f;
  SwiGlu(context_, gate.view(), up.view());
  for (int64_t j = 0; j < n; ++j) ExpectSwiGlu(values[j], -1.5f, gate(0, j));
}

TEST_P(ElementwiseTest, SwiGluKeepsNotANumber) {
  for (int64_t at = 0; at < 19; ++at) {
    const Padded gate = Padded::Normal(1, 19, 1), up = Padded::Normal(1, 19, 2);
    gate(0, at) = test::kNan;
    SwiGlu(context_, gate.view(), up.view());
    for (int64_t j = 0; j < 19; ++j) EXPECT_EQ(std::isnan(gate(0, j)), j == at) << at << " " << j;
  }
}

// gelu(x) = x / (1 + exp(-2 u)). The relative error of the exponential is the absolute error of its argument: 2 |u|
// times the relative error of three roundings.
void ExpectGeGlu(float gate, float up, float found) {
  const double x = gate, u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  const double expected = 0.5 * x * (1 + std::tanh(u)) * up, scale = std::abs(x * up);
  const double exact = x / (1 + std::exp(-2 * u)) * up;  // this form has no cancellation for large negative x
  ASSERT_NEAR(expected, exact, 1e-15 * scale);
  const double argument = std::min(2 * std::abs(u), 89.0) * 4 * test::kUnit;
  ASSERT_NEAR(found, exact, (3e-7 + 6 * test::kUnit + argument) * std::abs(exact) + 0x1p-126 * scale + 0x1p-149)
      << gate << " " << up;
}

TEST_P(ElementwiseTest, GeGluOfAnySizeAndOfExtremes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 67}, {40, 300}}) {
    for (const double size : {0.01, 1.0, 20.0, 1000.0}) {
      const Padded gate = Padded::Normal(rows, cols, 1, size), up = Padded::Normal(rows, cols, 2), out = gate.Copy();
      GeGlu(context_, out.view(), up.view());
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) ExpectGeGlu(gate(i, j), up(i, j), out(i, j));
      if (HasFatalFailure()) return;
      EXPECT_TRUE(out.PaddingIsUntouched());
      const Padded threaded = gate.Copy();
      GeGlu(On(3), threaded.view(), up.view());
      EXPECT_TRUE(test::Identical(out, threaded));
    }
  }
  std::vector<float> values = {0, -0.0f, 1e-40f, 1e-20f, 1e-8f, 0.5f, 1, 5, 10, 1e4f, 1e10f, 1e30f};
  for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
  const auto n = static_cast<int64_t>(values.size());
  const Padded gate(1, n), up(1, n);
  for (int64_t j = 0; j < n; ++j) gate(0, j) = values[j], up(0, j) = -1.5f;
  GeGlu(context_, gate.view(), up.view());
  for (int64_t j = 0; j < n; ++j) ExpectGeGlu(values[j], -1.5f, gate(0, j));
}

TEST_P(ElementwiseTest, SoftCapIsTanh) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    std::vector<float> values = {0, 1e-30f, 1e-6f, 0.01f, 0.5f, 0.624f, 0.625f, 0.626f, 1, 3, 9, 20, 1e10f, 3e38f};
    for (float& value : values) value = std::min(value * cap, 3e38f);
    for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
    Random random(4);
    while (values.size() < 3 * 1511) values.push_back(static_cast<float>(cap * random.Normal()));
    const Padded x(3, 1511);
    for (int64_t i = 0; i < 3 * 1511; ++i) x(i / 1511, i % 1511) = values[i];
    const Padded threaded = x.Copy();
    SoftCap(context_, cap, x.view());
    for (int64_t i = 0; i < 3 * 1511; ++i) {
      const double expected = cap * std::tanh(static_cast<double>(values[i]) / cap);
      ASSERT_NEAR(x(i / 1511, i % 1511), expected, (3e-7 + 3 * test::kUnit) * std::abs(expected)) << values[i];
    }
    EXPECT_TRUE(x.PaddingIsUntouched());
    SoftCap(On(3), cap, threaded.view());
    EXPECT_TRUE(test::Identical(x, threaded));
  }
  const Padded nan(1, 3);
  SoftCap(context_, 2, nan.view());
  for (int64_t j = 0; j < 3; ++j) EXPECT_TRUE(std::isnan(nan(0, j)));
  EXPECT_THROW(SoftCap(context_, 0, nan.view()), Error);
}

TEST_P(ElementwiseTest, AddToIsFloatAddition) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {37, 33}}) {
    const Padded x = Padded::Normal(rows, cols, 1), y = Padded::Normal(rows, cols, 2), sum = y.Copy();
    AddTo(context_, x.view(), sum.view());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) ASSERT_EQ(sum(i, j), x(i, j) + y(i, j));
    EXPECT_TRUE(sum.PaddingIsUntouched());
  }
  EXPECT_THROW(AddTo(context_, Padded(2, 3).view(), Padded(2, 4).view()), Error);
  EXPECT_THROW(SwiGlu(context_, Padded(2, 3).view(), Padded(3, 3).view()), Error);
  EXPECT_THROW(GeGlu(context_, Padded(2, 3).view(), Padded(2, 4).view()), Error);
}

struct Unit {
  double value, slope;  // the activation and its derivative, in float64
};

Unit Silu(double x) {
  const double p = 1 / (1 + std::exp(-x));
  return {x * p, p + x * p / (1 + std::exp(x))};
}

Unit GeluTanh(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), p = 1 / (1 + std::exp(-2 * u));
  const double change = p / (1 + std::exp(2 * u)) * 2 * std::sqrt(2 / M_PI) * (x + 3 * 0.044715 * x * x * x);
  return {x * p, p + (std::isnan(change) ? 0 : change)};
}

// The slopes cancel around their zero, so that their error is relative to the sum of their two terms, which is below
// 1 + |x| p (1 - p) |e'|, at most 3. The exponential's argument has a relative error, which GELU's cubic part raises.
void ExpectGatedGradient(Unit (*unit)(double), void (*expect_value)(float, float, float), const Padded& gate,
                         const Padded& up, const Padded& dout, const Padded& dgate, const Padded& dup) {
  for (int64_t i = 0; i < gate.rows(); ++i) {
    for (int64_t j = 0; j < gate.cols(); ++j) {
      const Unit exact = unit(gate(i, j));
      const double scale = std::abs(static_cast<double>(dout(i, j))), all = scale * std::abs(up(i, j));
      expect_value(gate(i, j), dout(i, j), dup(i, j));
      ASSERT_NEAR(dgate(i, j), exact.slope * up(i, j) * dout(i, j), 3e-6 * all + 1e-30) << gate(i, j);
    }
  }
}

TEST_P(ElementwiseTest, GatedGradients) {
  struct Case {
    Unit (*unit)(double);
    void (*expect_value)(float, float, float);
    decltype(&SwiGluGradient) gradient;
  };
  for (const auto& [unit, expect_value, gradient] :
       {Case{Silu, ExpectSwiGlu, SwiGluGradient}, {GeluTanh, ExpectGeGlu, GeGluGradient}}) {
    for (double x = -6; x < 6; x += 0.37) {  // the formula of the slope against the central difference of the value
      const double step = 1e-5;
      ASSERT_NEAR(unit(x).slope, (unit(x + step).value - unit(x - step).value) / (2 * step), 1e-9);
    }
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 67}, {40, 300}}) {
      for (const double size : {0.01, 1.0, 5.0, 1000.0}) {
        const Padded gate = Padded::Normal(rows, cols, 1, size), up = Padded::Normal(rows, cols, 2),
                     dout = Padded::Normal(rows, cols, 3), dgate = dout.Copy(), dup(rows, cols), threaded = dout.Copy(),
                     threaded_up(rows, cols);
        gradient(context_, gate.view(), up.view(), dgate.view(), dup.view());
        ExpectGatedGradient(unit, expect_value, gate, up, dout, dgate, dup);
        if (HasFatalFailure()) return;
        EXPECT_TRUE(dgate.PaddingIsUntouched() && dup.PaddingIsUntouched());
        gradient(On(3), gate.view(), up.view(), threaded.view(), threaded_up.view());
        EXPECT_TRUE(test::Identical(dgate, threaded) && test::Identical(dup, threaded_up));
      }
    }
    // Far from 0 the slope is 0 or 1, and no term of it overflows.
    const std::vector<float> far = {-3e38f, -1e30f, -1e13f, -1e4f, -101, -95, 0, 95, 101, 1e4f, 1e13f, 1e30f, 3e38f};
    const auto n = static_cast<int64_t>(far.size());
    const Padded gate(1, n), up(1, n), dgate(1, n), dup(1, n);
    for (int64_t j = 0; j < n; ++j) gate(0, j) = far[j], up(0, j) = dgate(0, j) = 1;
    gradient(context_, gate.view(), up.view(), dgate.view(), dup.view());
    for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(dgate(0, j), far[j] > 0 ? 1 : far[j] < 0 ? 0 : 0.5, 1e-6) << far[j];
    EXPECT_THROW(gradient(context_, gate.view(), up.view().Cols(0, 2), dgate.view(), dup.view()), Error);
    EXPECT_THROW(gradient(context_, gate.view(), up.view(), dgate.view(), dup.view().Cols(0, 2)), Error);
    gate(0, 3) = test::kNan;
    gradient(context_, gate.view(), up.view(), dgate.view(), dup.view());
    for (int64_t j = 0; j < n; ++j) EXPECT_EQ(std::isnan(dgate(0, j)), j == 3) << j;
  }
}

// The MLP without gate.
Unit ExactActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu: return Silu(x);
    case Activation::kGeluTanh: return GeluTanh(x);
    case Activation::kGelu: {
      const double share = std::erfc(-x / M_SQRT2) / 2;
      return {x * share, share + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
    }
    default: return x < 0 ? Unit{0, 0} : Unit{x * x, 2 * x};
  }
}

TEST_P(ElementwiseTest, ActivationsWithoutGateAndTheirGradients) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 67}, {40, 300}}) {
      for (const double size : {0.01, 1.0, 5.0}) {
        const Padded x = Padded::Normal(rows, cols, 1, size), out = x.Copy(), dy = Padded::Normal(rows, cols, 3),
                     dx = dy.Copy(), threaded = x.Copy(), threaded_dx = dy.Copy();
        Activate(context_, activation, out.view());
        ActivateGradient(context_, activation, x.view(), dx.view());
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; ++j) {
            const double at = x(i, j);
            const auto [exact, slope] = ExactActivation(activation, at);
            // 1 + erf(x) cancels where x is far below 0: the error is relative to |x|.
            ASSERT_NEAR(out(i, j), exact, 8 * test::kUnit * (std::abs(exact) + std::abs(at))) << at;
            ASSERT_NEAR(dx(i, j), slope * dy(i, j), 3e-6 * (1 + std::abs(slope)) * std::abs(dy(i, j))) << at;
          }
        }
        EXPECT_TRUE(out.PaddingIsUntouched() && dx.PaddingIsUntouched());
        Activate(On(3), activation, threaded.view());
        ActivateGradient(On(3), activation, x.view(), threaded_dx.view());
        EXPECT_TRUE(test::Identical(out, threaded) && test::Identical(dx, threaded_dx));
      }
    }
    const Padded x(1, 3), dx(1, 3);
    for (int64_t j = 0; j < 3; ++j) x(0, j) = static_cast<float>(j - 1), dx(0, j) = 1;
    x(0, 1) = test::kNan;
    ActivateGradient(context_, activation, x.view(), dx.view());
    Activate(context_, activation, x.view());
    for (int64_t j = 0; j < 3; ++j) EXPECT_TRUE(std::isnan(x(0, j)) == (j == 1) && std::isnan(dx(0, j)) == (j == 1));
    EXPECT_THROW(ActivateGradient(context_, activation, x.view(), dx.view().Cols(0, 2)), Error);
  }
}

}  // namespace
}  // namespace shiftrt
