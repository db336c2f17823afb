// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rowwise.h"

#include <numeric>

#include "kernels/dropout.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/gate_cases.h"

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
    // `values` are dense. The gaps are NaN.
    Grid2(Stream stream, const Size& size, const std::vector<double>& values)
        : size(size), input(stream, WithGaps(size, values)) {}
    static std::vector<double> WithGaps(const Size& size, const std::vector<double>& values) {
      std::vector<double> all(size.rows * size.stride, std::nan(""));
      for (int64_t i = 0; i < size.rows * size.cols; ++i) all[i / size.cols * size.stride + i % size.cols] = values[i];
      return all;
    }
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
  // Reads the matrix without its gaps, which are as they were.
  std::vector<double> Dense(const Grid2& grid) {
    const std::vector<double> now = Now(stream_, grid.input);
    std::vector<double> dense;
    for (size_t i = 0; i < now.size(); ++i) {
      if (static_cast<int64_t>(i) % grid.size.stride < grid.size.cols) {
        dense.push_back(now[i]);
      } else {
        EXPECT_TRUE(now[i] == grid.input[i] || (std::isnan(now[i]) && std::isnan(grid.input[i]))) << "written at " << i;
      }
    }
    return dense;
  }
  // Expects what the matrix holds now, dense and rounded.
  void ExpectRounded(const Grid2& of, const Output<BFloat16>& rounded) { ExpectRoundings(Dense(of), rounded); }
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

// Rows have gaps, and results are also written in bfloat16.
TEST_F(RowwiseOnGpu, GatedUnitsAndTheirGradientsAgreeWithFloat64) {
  for (const test::GateCase& c : test::GateCases()) {
    if (TooLarge(c.rows * c.cols, 3200)) continue;
    SCOPED_TRACE(c.Name());
    const test::GateProblem p(c);
    const test::GateProblem::Results exact = p.Exactly();
    const int64_t stride = c.cols + c.cols % 8, count = c.rows * c.cols;
    const auto grid = [&](const std::vector<double>& values) {
      return Grid2(stream_, {c.rows, c.cols, stride}, values);
    };
    const Grid2 gate = grid(p.gate), up = grid(p.up), result = grid(p.gate), dgate = grid(p.dout), dup = grid(p.dout);
    const Output<BFloat16> results(stream_, count), dgates(stream_, count), dups(stream_, count);
    const MatrixView<const float> by = c.gated ? up.view() : MatrixView<float>();
    GateRows(stream_, c.activation, {.gate = result.view(), .up = by}, result.view(), results.data());
    const WrittenRows to_up = c.gated ? WrittenRows(dup.view(), dups.data()) : WrittenRows(MatrixView<float>());
    GateRowsGradient(stream_, c.activation, gate.view(), by, {dgate.view(), dgates.data()}, to_up);
    const auto expect = [&](const char* name, const Grid2& found, const Output<BFloat16>& rounded,
                            const std::vector<test::Exact>& expected) {
      test::ExpectClose(name, Dense(found), expected, {64, DType::kFloat32, 256 * kUnit<float>});
      ExpectRounded(found, rounded);
    };
    expect("value", result, results, exact.out);
    expect("dgate", dgate, dgates, exact.dgate);
    if (c.gated) expect("dup", dup, dups, exact.dup);
    if (HasFailure()) return;
  }
}

// The operands are the output of one product, (tokens, 2 n): gates, then ups; they may have biases.
TEST_F(RowwiseOnGpu, GatesOfEveryTypeAndWithBiasesAgreeWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2}) {
      for (const bool gated : {false, true}) {
        for (const int64_t n : {8, 1000, 1032}) {
          for (const bool biased : {false, true}) {
            const int64_t tokens = 3;
            test::GateProblem p({activation, gated, tokens, n, 4}, DTypeOf<T>::value);
            SCOPED_TRACE(p.c.Name());
            std::vector<double> joined;
            for (int64_t t = 0; t < tokens; ++t)
              for (const std::vector<double>* part : {&p.gate, &p.up})
                joined.insert(joined.end(), part->begin() + t * n, part->begin() + (t + 1) * n);
            const Input<T> gate_up(stream_, joined);
            const auto bias = Input<float>::Normal(stream_, 2 * n, 4);
            const Output<T> out(stream_, tokens * n);
            const ConstDeviceRows gate({gate_up.data(), DTypeOf<T>::value}, tokens, n, 2 * n),
                up({gate_up.data() + n, DTypeOf<T>::value}, tokens, n, 2 * n);
            GateRows(stream_, activation,
                     {.gate = gate,
                      .up = gated ? up : ConstDeviceRows(),
                      .gate_bias = biased ? bias.data() : nullptr,
                      .up_bias = gated && biased ? bias.data() + n : nullptr},
                     {out.array(), tokens, n});
            for (int64_t i = 0; biased && i < tokens * n; ++i) {
              p.gate[i] += bias[i % n];
              if (gated) p.up[i] += bias[n + i % n];
            }
            std::vector<test::Exact> expected = p.Exactly().out;
            // The sums with the biases are rounded, and their terms may cancel. Slopes are below 1.2 or, of relu2, 2
            // |x|.
            for (size_t i = 0; i < expected.size(); ++i)
              expected[i].size += std::pow(std::abs(p.gate[i]) + 1, 2) * (std::abs(p.up[i]) + 1);
            test::ExpectClose("value", out.Values(), expected, {12, DTypeOf<T>::value, 0x1p-25});
          }
        }
      }
    }
  });
}

TEST_F(RowwiseOnGpu, SoftCapIsTanh) {
  for (const float cap : {0.5f, 30.0f}) {
    const std::vector<double> values = test::SoftCapInputs(cap);
    const Input<float> x(stream_, values);
    SoftCapRows(stream_, cap, {x.data(), 1, static_cast<int64_t>(values.size())});
    test::ExpectClose("capped", Now(stream_, x), test::SoftCapped(cap, values), {8});
  }
  const Input<float> x(stream_, {1.0});
  EXPECT_THROW(SoftCapRows(stream_, 0, {x.data(), 1, 1}), std::runtime_error);
}

TEST_F(RowwiseOnGpu, SwiGluSaturates) {
  const Input<float> gate_up(stream_, {-1000, 1000, 0, -100, 100, 1, -1, 50, 2, 2, 2, 2, 2, 2, 2, 2});
  const Output<float> out(stream_, 8);
  const MatrixView<const float> gate(gate_up.data(), 1, 8), up(gate_up.data() + 8, 1, 8);
  GateRows(stream_, Activation::kSilu, {.gate = gate, .up = up}, {out.array(), 1, 8});
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
