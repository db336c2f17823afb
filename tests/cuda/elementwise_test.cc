// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class ElementwiseOnGpu : public CudaTest {};

TEST_F(ElementwiseOnGpu, EmbedTakesTheRowsAskedFor) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t hidden : {8, 1032}) {
      const auto table = Input<T>::Normal(stream_, 5 * hidden, 1);
      const std::vector<int32_t> ids = {4, 0, 2, 4};
      const DeviceBuffer<int32_t> tokens(stream_, std::span<const int32_t>(ids), "a test");
      const Output<float> out(stream_, 4 * hidden);
      Embed(stream_, tokens.data(), 4, table.array(), hidden, out.data());
      const std::vector<double> rows = out.Values();
      for (int64_t i = 0; i < 4 * hidden; ++i) ASSERT_EQ(rows[i], table[ids[i / hidden] * hidden + i % hidden]);
      Embed(stream_, tokens.data(), 4, table.array(), hidden, out.data(), 6.9375f);
      const std::vector<double> scaled = out.Values();
      for (int64_t i = 0; i < 4 * hidden; ++i) ASSERT_EQ(scaled[i], static_cast<float>(rows[i]) * 6.9375f);
    }
  });
}

TEST_F(ElementwiseOnGpu, GatherCopiesRows) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t width : {8, 1032}) {
      const auto from = Input<T>::Normal(stream_, 5 * width, 1);
      const std::vector<int32_t> ids = {3, 3, 0};
      const DeviceBuffer<int32_t> rows(stream_, std::span<const int32_t>(ids), "a test");
      const Output<T> out(stream_, 3 * width);
      Gather(stream_, rows.data(), 3, from.array(), width, out.array());
      const std::vector<double> found = out.Values();
      for (int64_t i = 0; i < 3 * width; ++i) ASSERT_EQ(found[i], from[ids[i / width] * width + i % width]);
    }
  });
}

TEST_F(ElementwiseOnGpu, WidenPutsRowsIntoTheFirstColumns) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t width : {8, 1032}) {
      const int64_t stride = width + 16;
      const auto from = Input<T>::Normal(stream_, 3 * width, 1);
      const auto beside = Input<float>::Normal(stream_, 3 * stride, 2);
      const Output<float> out(stream_, 3 * stride);
      Widen(stream_, beside.array(), 3, stride, out.data(), stride);
      Widen(stream_, from.array(), 3, width, out.data(), stride);
      const std::vector<double> found = out.Values();
      for (int64_t i = 0; i < 3 * stride; ++i) {
        const int64_t column = i % stride;
        ASSERT_EQ(found[i], column < width ? from[i / stride * width + column] : beside[i]);
      }
    }
  });
}

TEST_F(ElementwiseOnGpu, SwiGluAgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t n : {8, 1000, 1032}) {
      for (const bool biased : {false, true}) {
        const int64_t tokens = 3;
        const auto gate_up = Input<T>::Normal(stream_, tokens * 2 * n, 1, 4.0);
        const auto bias = Input<float>::Normal(stream_, 2 * n, 2);
        const Output<T> out(stream_, tokens * n);
        SwiGlu(stream_, gate_up.array(), biased ? bias.data() : nullptr, tokens, n, out.array());
        const std::vector<double> found = out.Values();
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t j = 0; j < n; ++j) {
            const double gate = gate_up[t * 2 * n + j] + (biased ? bias[j] : 0);
            const double up = gate_up[t * 2 * n + n + j] + (biased ? bias[n + j] : 0);
            const double expected = gate / (1 + std::exp(-gate)) * up;
            // The sum with the bias is rounded, and its terms may cancel. That error reaches the argument of the
            // exponential.
            const double slack = 8 * kUnit<float> * (1 + std::abs(gate)) * (std::abs(gate) + 1) * (std::abs(up) + 1);
            EXPECT_CLOSE(found[t * n + j], expected, std::abs(expected) * kUnit<T> + slack + 0x1p-25, j);
          }
        }
      }
    }
  });
}

TEST_F(ElementwiseOnGpu, GeGluAgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    const int64_t tokens = 3, n = 1032;
    const auto gate_up = Input<T>::Normal(stream_, tokens * 2 * n, 1, 4.0);
    const auto bias = Input<float>::Normal(stream_, 2 * n, 2);
    for (const bool biased : {false, true}) {
      const Output<T> out(stream_, tokens * n);
      GeGlu(stream_, gate_up.array(), biased ? bias.data() : nullptr, tokens, n, out.array());
      const std::vector<double> found = out.Values();
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t j = 0; j < n; ++j) {
          const double gate = gate_up[t * 2 * n + j] + (biased ? bias[j] : 0);
          const double up = gate_up[t * 2 * n + n + j] + (biased ? bias[n + j] : 0);
          const double u = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
          const double expected = gate / (1 + std::exp(-2 * u)) * up;
          // The rounding of the gate's sum is multiplied by the slope of gelu, which is below 1.2. The other errors are
          // those of the argument of the exponential.
          const double slack = 8 * kUnit<float> * (std::abs(gate) + 1) * (std::abs(up) + 1);
          EXPECT_CLOSE(found[t * n + j], expected,
                       std::abs(expected) * (kUnit<T> + 12 * kUnit<float> * (1 + std::abs(u))) + slack + 0x1p-25, j);
        }
      }
    }
  });
}

TEST_F(ElementwiseOnGpu, ActivationsWithoutGateAgreeWithFloat64) {
  const auto exact = [](Activation activation, double x) {
    switch (activation) {
      case Activation::kSilu: return x / (1 + std::exp(-x));
      case Activation::kGeluTanh: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::kGelu: return x / 2 * (1 + std::erf(x / M_SQRT2));
      default: return x < 0 ? 0 : x * x;
    }
  };
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2}) {
      for (const bool biased : {false, true}) {
        const int64_t tokens = 3, n = 1032;
        const auto x = Input<T>::Normal(stream_, tokens * n, 1, 4.0);
        const auto bias = Input<float>::Normal(stream_, n, 2);
        const Output<T> out(stream_, tokens * n);
        Activate(stream_, activation, x.array(), biased ? bias.data() : nullptr, tokens, n, out.array());
        const std::vector<double> found = out.Values();
        for (int64_t i = 0; i < tokens * n; ++i) {
          const double sum = x[i] + (biased ? bias[i % n] : 0), expected = exact(activation, sum);
          // The sum is rounded, and slopes are below 1.2 or, of relu2, 2 |x|.
          const double slack = 8 * kUnit<float> * (std::abs(sum) + 1) * (std::abs(sum) + 1);
          EXPECT_CLOSE(found[i], expected, std::abs(expected) * (kUnit<T> + 100 * kUnit<float>)+slack + 0x1p-25, i);
        }
      }
    }
  });
  const Input<float> x(stream_, std::vector<double>(12, 1.0));
  const Output<float> out(stream_, 12);
  EXPECT_THROW(Activate(stream_, Activation::kRelu2, x.array(), nullptr, 1, 12, out.array()), std::runtime_error);
}

TEST_F(ElementwiseOnGpu, SoftCapIsTanh) {
  const int64_t n = 777;
  for (const float cap : {0.5f, 30.0f}) {
    auto x = Input<float>::Normal(stream_, n, 1, 2.0 * static_cast<double>(cap));
    SoftCap(stream_, cap, n, x.data());
    const std::vector<double> found = Now(stream_, x);
    for (int64_t i = 0; i < n; ++i) {
      const double expected = static_cast<double>(cap) * std::tanh(x[i] / static_cast<double>(cap));
      EXPECT_CLOSE(found[i], expected, 8 * kUnit<float> * std::abs(expected), i);
    }
  }
  EXPECT_THROW(SoftCap(stream_, 0, 1, nullptr), std::runtime_error);
}

TEST_F(ElementwiseOnGpu, SwiGluSaturates) {
  const Input<float> gate_up(stream_, {-1000, 1000, 0, -100, 100, 1, -1, 50, 2, 2, 2, 2, 2, 2, 2, 2});
  const Output<float> out(stream_, 8);
  SwiGlu(stream_, gate_up.array(), nullptr, 1, 8, out.array());
  const std::vector<double> found = out.Values();
  EXPECT_EQ(std::abs(found[0]), 0.0);
  EXPECT_EQ(found[1], 2000.0);
  EXPECT_EQ(found[2], 0.0);
  EXPECT_NEAR(found[3], 0.0, 1e-30);
  EXPECT_EQ(found[4], 200.0);
}

}  // namespace
}  // namespace shiftrt::gpu
