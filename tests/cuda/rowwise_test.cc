// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rowwise.h"

#include <numeric>

#include "kernels/dropout.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

// Widths and strides that are multiples of 8, for the wide form, and others.
struct Size {
  int64_t rows, cols, stride;
};
constexpr Size kSizes[] = {{3, 1048, 1048}, {3, 40, 48}, {5, 7, 7}, {2, 1030, 1037}, {4, 1, 3}};

class RowwiseOnGpu : public CudaTest {
 protected:
  // A matrix whose rows have gaps, and what it held.
  struct Grid2 {
    Grid2(Stream stream, const Size& size, uint64_t seed, double scale = 1)
        : size(size), input(Input<float>::Normal(stream, size.rows * size.stride, seed, scale)) {}
    MatrixView<float> view() const { return {input.data(), size.rows, size.cols, size.stride}; }
    double operator()(int64_t i, int64_t j) const { return input[i * size.stride + j]; }
    Size size;
    Input<float> input;
  };
  // Expects expected(i, j) within tolerance(i, j) in the matrix, and its gaps as they were.
  template <typename Value>
  void Expect(const Grid2& found, const Value& expected, double relative = 0, double absolute = 0) {
    const std::vector<double> now = Now(stream_, found.input);
    for (int64_t i = 0; i < found.size.rows; ++i) {
      for (int64_t j = 0; j < found.size.stride; ++j) {
        const int64_t at = i * found.size.stride + j;
        if (j >= found.size.cols) {
          ASSERT_EQ(now[at], found.input[at]) << "behind row " << i;
          continue;
        }
        const double wanted = expected(i, j);
        EXPECT_CLOSE(now[at], wanted, relative * std::abs(wanted) + absolute, at);
      }
    }
  }
  // Expects what the matrix holds now, dense and rounded.
  void ExpectRounded(const Grid2& of, const Output<BFloat16>& rounded) {
    const std::vector<double> now = Now(stream_, of.input);
    const std::vector<BFloat16> found = rounded.Raw();
    for (int64_t i = 0; i < of.size.rows; ++i)
      for (int64_t j = 0; j < of.size.cols; ++j)
        ASSERT_EQ(found[i * of.size.cols + j].bits, BFloat16(static_cast<float>(now[i * of.size.stride + j])).bits)
            << i << " " << j;
  }
  // Gates the product with both matrices, gate_up (tokens, 2 n): gate, then up. bias (2 n) may be null.
  template <typename T>
  void GateJoined(Activation activation, const Input<T>& gate_up, const float* bias, int64_t tokens, int64_t n,
                  const Output<T>& out) {
    const auto half = [&](int64_t column) {
      return ConstDeviceRows({gate_up.data() + column, DTypeOf<T>::value}, tokens, n, 2 * n);
    };
    GateRows(stream_, activation,
             {.gate = half(0), .up = half(n), .gate_bias = bias, .up_bias = bias != nullptr ? bias + n : nullptr},
             {out.array(), tokens, n});
  }
  static double Rounded(double x) { return static_cast<double>(static_cast<float>(x)); }
};

TEST_F(RowwiseOnGpu, CopiesAddsAndScales) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.cols);
    const Grid2 from(stream_, {size.rows, size.cols, size.stride + 5}, 1);
    const Grid2 copied(stream_, size, 2), added(stream_, size, 3), biased(stream_, size, 4), zeroed(stream_, size, 5),
        scaled(stream_, size, 6), both(stream_, size, 7);
    CopyRows(stream_, from.view(), copied.view());
    AddRows(stream_, from.view(), added.view());
    AddRows(stream_, {}, biased.view(), from.view().data);
    AddRows(stream_, from.view(), both.view(), from.view().data, -1);
    ZeroRows(stream_, zeroed.view());
    ScaleRows(stream_, -0.25f, scaled.view());
    Expect(copied, from);
    Expect(added, [&](int64_t i, int64_t j) { return Rounded(added(i, j) + from(i, j)); });
    Expect(biased, [&](int64_t i, int64_t j) { return Rounded(biased(i, j) + from(0, j)); });
    Expect(both, [&](int64_t i, int64_t j) { return Rounded(Rounded(both(i, j) - from(i, j)) + from(0, j)); });
    Expect(zeroed, [](int64_t, int64_t) { return 0.0; });
    Expect(scaled, [&](int64_t i, int64_t j) { return -0.25 * scaled(i, j); });
  }
}

TEST_F(RowwiseOnGpu, GathersAndScatters) {
  for (const Size& size : kSizes) {
    const Grid2 many(stream_, {9, size.cols, size.stride}, 1), few(stream_, size, 2), spread(stream_, many.size, 3);
    std::vector<int32_t> rows(size.rows);
    for (int64_t i = 0; i < size.rows; ++i) rows[i] = static_cast<int32_t>((4 * i + 8) % 9);
    const DeviceBuffer<int32_t> device(stream_, std::span<const int32_t>(rows), "a test");
    GatherRows(stream_, device.data(), many.view(), few.view());
    ScatterRows(stream_, device.data(), few.view(), spread.view());
    Expect(few, [&](int64_t i, int64_t j) { return many(rows[i], j); });
    Expect(spread, [&](int64_t i, int64_t j) {
      return std::find(rows.begin(), rows.end(), i) != rows.end() ? many(i, j) : spread(i, j);
    });
  }
}

TEST_F(RowwiseOnGpu, NarrowsToDenseRows) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const Size& size : kSizes) {
      const Grid2 from(stream_, size, 1);
      const Output<T> to(stream_, size.rows * size.cols);
      CopyRows(stream_, from.view(), {to.array(), size.rows, size.cols});
      const std::vector<double> found = to.Values();
      for (int64_t i = 0; i < size.rows; ++i)
        for (int64_t j = 0; j < size.cols; ++j)
          ASSERT_EQ(found[i * size.cols + j], Exact(T(static_cast<float>(from(i, j)))));
    }
  });
}

TEST_F(RowwiseOnGpu, GathersRowsOfEveryTypeInFloat32) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t hidden : {8, 1032}) {
      const auto table = Input<T>::Normal(stream_, 5 * hidden, 1);
      const std::vector<int32_t> ids = {4, 0, 2, 4};
      const DeviceBuffer<int32_t> tokens(stream_, std::span<const int32_t>(ids), "a test");
      const Output<float> out(stream_, 4 * hidden);
      const MatrixView<float> to(out.data(), 4, hidden);
      GatherRows(stream_, tokens.data(), {table.array(), 5, hidden}, to);
      const std::vector<double> rows = out.Values();
      for (int64_t i = 0; i < 4 * hidden; ++i) ASSERT_EQ(rows[i], table[ids[i / hidden] * hidden + i % hidden]);
      GatherRows(stream_, tokens.data(), {table.array(), 5, hidden}, to, 6.9375f);
      const std::vector<double> scaled = out.Values();
      for (int64_t i = 0; i < 4 * hidden; ++i) ASSERT_EQ(scaled[i], static_cast<float>(rows[i]) * 6.9375f);
    }
  });
}

TEST_F(RowwiseOnGpu, GathersRowsOfEveryType) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t width : {8, 1032}) {
      const auto from = Input<T>::Normal(stream_, 5 * width, 1);
      const std::vector<int32_t> ids = {3, 3, 0};
      const DeviceBuffer<int32_t> rows(stream_, std::span<const int32_t>(ids), "a test");
      const Output<T> out(stream_, 3 * width);
      GatherRows(stream_, rows.data(), {from.array(), 5, width}, {out.array(), 3, width});
      const std::vector<double> found = out.Values();
      for (int64_t i = 0; i < 3 * width; ++i) ASSERT_EQ(found[i], from[ids[i / width] * width + i % width]);
    }
  });
}

TEST_F(RowwiseOnGpu, WidensIntoTheFirstColumns) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t width : {8, 1032}) {
      const int64_t stride = width + 16;
      const auto from = Input<T>::Normal(stream_, 3 * width, 1);
      const auto beside = Input<float>::Normal(stream_, 3 * stride, 2);
      const Output<float> out(stream_, 3 * stride);
      CopyRows(stream_, {beside.array(), 3, stride}, MatrixView<float>(out.data(), 3, stride));
      CopyRows(stream_, {from.array(), 3, width}, MatrixView<float>(out.data(), 3, width, stride));
      const std::vector<double> found = out.Values();
      for (int64_t i = 0; i < 3 * stride; ++i) {
        const int64_t column = i % stride;
        ASSERT_EQ(found[i], column < width ? from[i / stride * width + column] : beside[i]);
      }
    }
  });
}

TEST_F(RowwiseOnGpu, DropsWhatTheCpuDrops) {
  for (const Size& size : kSizes) {
    const Grid2 from(stream_, {size.rows, size.cols, size.stride + 1}, 1), to(stream_, size, 2);
    const Dropout dropout{0x123456789abcdefu, 0.3f};
    DropRows(stream_, {dropout.key, dropout.Threshold(), dropout.Scale()}, from.view(), to.view());
    Expect(to, [&](int64_t i, int64_t j) {
      const bool dropped = Dropout::Bits(dropout.key, static_cast<uint64_t>(i * size.cols + j)) < dropout.Threshold();
      return dropped ? 0 : Rounded(from(i, j) * static_cast<double>(dropout.Scale()));
    });
  }
}

// Tests all activations, with values so large that the exponential overflows too.
TEST_F(RowwiseOnGpu, GatedUnitsAndTheirGradientsAgreeWithFloat64) {
  const auto value = [](Activation activation, double x) {
    if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
    if (activation == Activation::kGelu) return x / 2 * (1 + std::erf(x / M_SQRT2));
    if (activation == Activation::kRelu2) return x < 0 ? 0 : x * x;
    return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  const auto slope = [](Activation activation, double x) {
    if (activation == Activation::kSilu) {
      const double sigmoid = 1 / (1 + std::exp(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    if (activation == Activation::kGelu)
      return (1 + std::erf(x / M_SQRT2)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    if (activation == Activation::kRelu2) return x < 0 ? 0 : 2 * x;
    const double tanh = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  };
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2}) {
    for (const Size& size : kSizes) {
      for (const double scale : {2.0, 60.0}) {
        SCOPED_TRACE(scale);
        const Grid2 gate(stream_, size, 1, scale), up(stream_, {size.rows, size.cols, size.stride + 8}, 2),
            result(stream_, size, 1, scale), dgate(stream_, size, 3), dup(stream_, size, 4);
        const Grid2 alone(stream_, size, 1, scale), dalone(stream_, size, 3);
        const int64_t count = size.rows * size.cols;
        const Output<BFloat16> alones(stream_, count), dalones(stream_, count);
        const Output<BFloat16> results(stream_, count), dgates(stream_, count), dups(stream_, count);
        GateRows(stream_, activation, {.gate = result.view(), .up = up.view()}, result.view(), results.data());
        GateRowsGradient(stream_, activation, gate.view(), up.view(), {dgate.view(), dgates.data()},
                         {dup.view(), dups.data()});
        GateRows(stream_, activation, {.gate = alone.view()}, alone.view(), alones.data());
        GateRowsGradient(stream_, activation, gate.view(), {}, {dalone.view(), dalones.data()}, MatrixView<float>());
        ExpectRounded(alone, alones);
        ExpectRounded(dalone, dalones);
        ExpectRounded(result, results);
        ExpectRounded(dgate, dgates);
        ExpectRounded(dup, dups);
        const double unit = 32 * kUnit<float>;
        Expect(
            result, [&](int64_t i, int64_t j) { return value(activation, gate(i, j)) * up(i, j); }, unit, 8 * unit);
        Expect(
            dgate, [&](int64_t i, int64_t j) { return dgate(i, j) * up(i, j) * slope(activation, gate(i, j)); }, unit,
            8 * unit);
        Expect(
            alone, [&](int64_t i, int64_t j) { return value(activation, gate(i, j)); }, unit, 8 * unit);
        Expect(
            dalone, [&](int64_t i, int64_t j) { return dalone(i, j) * slope(activation, gate(i, j)); }, unit, 8 * unit);
        Expect(
            dup, [&](int64_t i, int64_t j) { return dgate(i, j) * value(activation, gate(i, j)); }, unit, 8 * unit);
      }
    }
  }
}

TEST_F(RowwiseOnGpu, SwiGluAgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t n : {8, 1000, 1032}) {
      for (const bool biased : {false, true}) {
        const int64_t tokens = 3;
        const auto gate_up = Input<T>::Normal(stream_, tokens * 2 * n, 1, 4.0);
        const auto bias = Input<float>::Normal(stream_, 2 * n, 2);
        const Output<T> out(stream_, tokens * n);
        GateJoined(Activation::kSilu, gate_up, biased ? bias.data() : nullptr, tokens, n, out);
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

TEST_F(RowwiseOnGpu, GeGluAgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    const int64_t tokens = 3, n = 1032;
    const auto gate_up = Input<T>::Normal(stream_, tokens * 2 * n, 1, 4.0);
    const auto bias = Input<float>::Normal(stream_, 2 * n, 2);
    for (const bool biased : {false, true}) {
      const Output<T> out(stream_, tokens * n);
      GateJoined(Activation::kGeluTanh, gate_up, biased ? bias.data() : nullptr, tokens, n, out);
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

TEST_F(RowwiseOnGpu, ActivationsWithoutGateAgreeWithFloat64) {
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
        const ConstDeviceRows gate(x.array(), tokens, n);
        GateRows(stream_, activation, {.gate = gate, .gate_bias = biased ? bias.data() : nullptr},
                 {out.array(), tokens, n});
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
}

TEST_F(RowwiseOnGpu, SoftCapIsTanh) {
  const int64_t n = 777;
  for (const float cap : {0.5f, 30.0f}) {
    auto x = Input<float>::Normal(stream_, n, 1, 2.0 * static_cast<double>(cap));
    SoftCapRows(stream_, cap, {x.data(), 1, n});
    const std::vector<double> found = Now(stream_, x);
    for (int64_t i = 0; i < n; ++i) {
      const double expected = static_cast<double>(cap) * std::tanh(x[i] / static_cast<double>(cap));
      EXPECT_CLOSE(found[i], expected, 8 * kUnit<float> * std::abs(expected), i);
    }
  }
  const Input<float> x(stream_, {1.0});
  EXPECT_THROW(SoftCapRows(stream_, 0, {x.data(), 1, 1}), std::runtime_error);
}

TEST_F(RowwiseOnGpu, SwiGluSaturates) {
  const Input<float> gate_up(stream_, {-1000, 1000, 0, -100, 100, 1, -1, 50, 2, 2, 2, 2, 2, 2, 2, 2});
  const Output<float> out(stream_, 8);
  GateJoined(Activation::kSilu, gate_up, nullptr, 1, 8, out);
  const std::vector<double> found = out.Values();
  EXPECT_EQ(std::abs(found[0]), 0.0);
  EXPECT_EQ(found[1], 2000.0);
  EXPECT_EQ(found[2], 0.0);
  EXPECT_NEAR(found[3], 0.0, 1e-30);
  EXPECT_EQ(found[4], 200.0);
}

TEST_F(RowwiseOnGpu, AddsSumsOfColumns) {
  for (const Size& size : {Size{1, 8, 8}, {37, 70, 72}, {300, 33, 33}, {3, 1, 4}}) {
    const Grid2 x(stream_, size, 1), to(stream_, {1, size.cols, size.cols}, 2);
    AddColumnSums(stream_, x.view(), to.view());
    Expect(
        to,
        [&](int64_t, int64_t j) {
          double sum = to(0, j);
          for (int64_t i = 0; i < size.rows; ++i) sum += x(i, j);
          return sum;
        },
        0, kUnit<float> * 4 * static_cast<double>(size.rows + 8));
  }
}

TEST_F(RowwiseOnGpu, RefusesMatricesThatDoNotFit) {
  const Grid2 a(stream_, {3, 8, 8}, 1), b(stream_, {3, 16, 16}, 2), c(stream_, {2, 8, 8}, 3);
  EXPECT_THROW(CopyRows(stream_, a.view(), b.view()), std::runtime_error);
  EXPECT_THROW(AddRows(stream_, c.view(), a.view()), std::runtime_error);
  EXPECT_THROW(GateRows(stream_, Activation::kSilu, {.gate = a.view(), .up = c.view()}, a.view()), std::runtime_error);
  const Output<Float16> half(stream_, 24);
  const Output<BFloat16> other(stream_, 24);
  EXPECT_THROW(GateRows(stream_, Activation::kSilu, {.gate = a.view()}, {half.array(), 3, 8}), std::runtime_error);
  EXPECT_THROW(CopyRows(stream_, {half.array(), 3, 8}, {other.array(), 3, 8}), std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
