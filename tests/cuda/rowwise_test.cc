// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rowwise.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/gate_cases.h"
#include "tests/kernels/row_cases.h"

namespace shiftrt::gpu {
namespace {

class RowwiseOnGpu : public CudaTest {
 protected:
  // A matrix with NaN in the gaps between its rows. `values` are dense; without them it is NaN.
  template <typename T>
  struct Gapped {
    Gapped(Stream stream, const test::RowsCase& c, const std::vector<double>& values = {})
        : stream(stream), c(c), input(stream, WithGaps(c, values)) {}
    static std::vector<double> WithGaps(const test::RowsCase& c, const std::vector<double>& values) {
      std::vector<double> all(c.rows * (c.cols + c.gap), std::nan(""));
      for (size_t i = 0; i < values.size(); ++i) all[i / c.cols * (c.cols + c.gap) + i % c.cols] = values[i];
      return all;
    }
    MatrixView<T> view() const { return {input.data(), c.rows, c.cols, c.cols + c.gap}; }
    ConstDeviceRows rows() const { return {input.array(), c.rows, c.cols, c.cols + c.gap}; }
    // Reads the matrix without its gaps, which are as they were.
    std::vector<double> Values() const {
      std::vector<double> dense;
      const std::vector<T> now = Output<T>::Fetch(stream, input.buffer);
      for (size_t i = 0; i < now.size(); ++i) {
        if (static_cast<int64_t>(i) % (c.cols + c.gap) < c.cols) {
          dense.push_back(Exact(now[i]));
        } else {
          EXPECT_TRUE(std::isnan(Exact(now[i]))) << "written at " << i;
        }
      }
      return dense;
    }
    Stream stream;
    test::RowsCase c;
    Input<T> input;
  };
  using Grid2 = Gapped<float>;
  // Expects what the matrix holds now, dense and rounded.
  static void ExpectRounded(const Grid2& of, const Output<BFloat16>& rounded) { ExpectRoundings(of.Values(), rounded); }
};

// `from` has its rows in other places of vectors than the result, and in the same.
TEST_F(RowwiseOnGpu, CopiesAddsScalesAndDrops) {
  for (const test::RowsCase& c : test::RowsCases()) {
    SCOPED_TRACE(c.Name());
    const test::RowsProblem p(c);
    const Input<float> row(stream_, p.row);
    std::vector<double> scaled = p.y;
    for (double& value : scaled) value *= -0.25;
    // Expects what step(y) makes of y.
    const auto expect = [&](const char* name, const std::vector<double>& expected, const auto& step) {
      const Grid2 y(stream_, c, p.y);
      step(y.view());
      test::ExpectEqual(name, y.Values(), expected);
    };
    expect("y + row", p.Sums(0, p.row), [&](MatrixView<float> y) { AddRows(stream_, {}, y, row.data()); });
    expect("0", std::vector<double>(p.y.size()), [&](MatrixView<float> y) { ZeroRows(stream_, y); });
    expect("-y / 4", scaled, [&](MatrixView<float> y) { ScaleRows(stream_, -0.25f, y); });
    for (const int64_t more : {5, 8}) {
      const Grid2 from(stream_, {c.rows, c.cols, c.gap + more}, p.x);
      const MatrixView<const float> x = from.view();
      const Dropped dropped{test::kDropout.key, test::kDropout.Threshold(), test::kDropout.Scale()};
      expect("y + x", p.Sums(1), [&](MatrixView<float> y) { AddRows(stream_, x, y); });
      expect("y - x + row", p.Sums(-1, p.row), [&](MatrixView<float> y) { AddRows(stream_, x, y, row.data(), -1); });
      expect("x", p.x, [&](MatrixView<float> y) { CopyRows(stream_, x, y); });
      expect("dropped", p.Dropped(test::kDropout), [&](MatrixView<float> y) { DropRows(stream_, dropped, x, y); });
    }
  }
}

TEST_F(RowwiseOnGpu, NarrowsToDenseRowsAndWidensIntoOthers) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const test::RowsCase& c : test::RowsCases()) {
      SCOPED_TRACE(c.Name());
      const test::RowsProblem p(c);
      const std::vector<double> nearest = test::Nearest(p.x, DTypeOf<T>::value);
      const Output<T> narrow(stream_, c.rows * c.cols);
      CopyRows(stream_, Grid2(stream_, c, p.x).view(), {narrow.array(), c.rows, c.cols});
      test::ExpectEqual("narrow", narrow.Values(), nearest);
      const Grid2 wide(stream_, {c.rows, c.cols, c.gap + 8});
      CopyRows(stream_, Gapped<T>(stream_, c, p.x).rows(), wide.view());
      test::ExpectEqual("wide", wide.Values(), nearest);
    }
  });
}

// From tables of every type to float32, and to the type of the table.
TEST_F(RowwiseOnGpu, GathersAndScatters) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const test::GatherCase& c : test::GatherCases()) {
      SCOPED_TRACE(c.Name());
      const test::GatherProblem p(c, DTypeOf<T>::value);
      const DeviceBuffer<int32_t> rows(stream_, std::span<const int32_t>(c.rows), "a test");
      const Gapped<T> table(stream_, {c.table_rows, c.cols, c.gap}, p.table);
      const Grid2 wide(stream_, {p.count(), c.cols, c.gap});
      GatherRows(stream_, rows.data(), table.rows(), wide.view(), c.scale);
      test::ExpectEqual("widened", wide.Values(), p.Gathered());
      if (c.scale != 1) continue;
      const Output<T> same(stream_, p.count() * c.cols);
      GatherRows(stream_, rows.data(), table.rows(), {same.array(), p.count(), c.cols});
      test::ExpectEqual("as they are", same.Values(), p.Gathered());
      if (!p.scatters()) continue;
      const Grid2 spread(stream_, {c.table_rows, c.cols, c.gap}, p.others);
      ScatterRows(stream_, rows.data(), wide.view(), spread.view());
      test::ExpectEqual("scattered", spread.Values(), p.Scattered());
    }
  });
}

// Rows have gaps, and results are also written in bfloat16.
TEST_F(RowwiseOnGpu, GatedUnitsAndTheirGradientsAgreeWithFloat64) {
  for (const test::GateCase& c : test::GateCases()) {
    if (TooLarge(c.rows * c.cols, 3200)) continue;
    SCOPED_TRACE(c.Name());
    const test::GateProblem p(c);
    const test::GateProblem::Results exact = p.Exactly();
    const int64_t count = c.rows * c.cols;
    const auto grid = [&](const std::vector<double>& values) {
      return Grid2(stream_, {c.rows, c.cols, c.cols % 8}, values);
    };
    const Grid2 gate = grid(p.gate), up = grid(p.up), result = grid(p.gate), dgate = grid(p.dout), dup = grid(p.dout);
    const Output<BFloat16> results(stream_, count), dgates(stream_, count), dups(stream_, count);
    const MatrixView<const float> by = c.gated ? up.view() : MatrixView<float>();
    GateRows(stream_, c.activation, {.gate = result.view(), .up = by}, result.view(), results.data());
    const WrittenRows to_up = c.gated ? WrittenRows(dup.view(), dups.data()) : WrittenRows(MatrixView<float>());
    GateRowsGradient(stream_, c.activation, gate.view(), by, {dgate.view(), dgates.data()}, to_up);
    const auto expect = [&](const char* name, const Grid2& found, const Output<BFloat16>& rounded,
                            const std::vector<test::Exact>& expected) {
      test::ExpectClose(name, found.Values(), expected, {64, DType::kFloat32, 256 * kUnit<float>});
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

// Elements of matrices with gaps, each against float64, with a rounded copy.
TEST_F(RowwiseOnGpu, SigmoidGatesAndTheirGradientsAgreeWithFloat64) {
  for (const test::RowsCase& c : {test::RowsCase{3, 24, 0}, {2, 7, 3}, {5, 136, 8}}) {
    SCOPED_TRACE(c.Name());
    const int64_t count = c.rows * c.cols;
    const auto drawn = [&](uint64_t seed) { return Input<float>::Normal(stream_, count, seed).values; };
    const std::vector<double> gate = drawn(1), x = drawn(2), dy = drawn(3);
    const Grid2 gates(stream_, c, gate), from(stream_, c, x), to(stream_, c, x), of_x(stream_, c, dy),
        of_gates(stream_, c);
    const Output<BFloat16> rounded(stream_, count), rounded_dy(stream_, count), rounded_gates(stream_, count);
    SigmoidGate(stream_, gates.view(), {to.view(), rounded.data()});
    SigmoidGateGradient(stream_, gates.view(), from.view(), {of_x.view(), rounded_dy.data()},
                        {of_gates.view(), rounded_gates.data()});
    std::vector<double> wanted, wanted_dx, wanted_dgate;
    for (int64_t i = 0; i < count; ++i) {
      const double p = 1 / (1 + std::exp(-gate[i]));
      wanted.push_back(x[i] * p);
      wanted_dx.push_back(dy[i] * p);
      wanted_dgate.push_back(dy[i] * x[i] * p * (1 - p));
    }
    const auto expect = [&](const Grid2& found, const std::vector<double>& expected, const Output<BFloat16>& narrow) {
      const std::vector<double> values = found.Values();
      for (int64_t i = 0; i < count; ++i)
        ASSERT_NEAR(values[i], expected[i], 32 * test::kUnit * (std::abs(expected[i]) + 0.1)) << i;
      ExpectRounded(found, narrow);
    };
    expect(to, wanted, rounded);
    expect(of_x, wanted_dx, rounded_dy);
    expect(of_gates, wanted_dgate, rounded_gates);
  }
}

// Inside the limits and at each side of them.
TEST_F(RowwiseOnGpu, ClampedUnitsAndTheirGradientsAgreeWithFloat64) {
  const ClampedSwiGlu unit{.alpha = 1.25f, .limit = 0.75f};
  for (const test::RowsCase& c : {test::RowsCase{3, 24, 0}, {2, 7, 3}}) {
    SCOPED_TRACE(c.Name());
    const int64_t count = c.rows * c.cols;
    const auto drawn = [&](uint64_t seed) { return Input<float>::Normal(stream_, count, seed).values; };
    const std::vector<double> gate = drawn(1), up = drawn(2), dy = drawn(3);
    const Grid2 gates(stream_, c, gate), ups(stream_, c, up), result(stream_, c, gate), of_gate(stream_, c, dy),
        of_up(stream_, c);
    const Output<BFloat16> rounded(stream_, count), rounded_up(stream_, count);
    ClampedGateRows(stream_, unit, result.view(), ups.view());
    ClampedGateRowsGradient(stream_, unit, gates.view(), ups.view(), {of_gate.view(), rounded.data()},
                            {of_up.view(), rounded_up.data()});
    const std::vector<double> found = result.Values(), found_gate = of_gate.Values(), found_up = of_up.Values();
    ExpectRounded(of_gate, rounded);
    ExpectRounded(of_up, rounded_up);
    const double limit = unit.limit, alpha = unit.alpha;
    for (int64_t i = 0; i < count; ++i) {
      const double g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit),
                   p = 1 / (1 + std::exp(-alpha * g));
      const double tolerance = 32 * test::kUnit * (1 + std::abs(dy[i]) * (1 + std::abs(g)));
      ASSERT_NEAR(found[i], (u + 1) * g * p, tolerance) << i;
      ASSERT_NEAR(found_gate[i], gate[i] > limit ? 0 : dy[i] * (u + 1) * p * (1 + alpha * g * (1 - p)), tolerance) << i;
      ASSERT_NEAR(found_up[i], std::abs(up[i]) > limit ? 0 : dy[i] * g * p, tolerance) << i;
    }
  }
}

TEST_F(RowwiseOnGpu, SplitsAndJoinsQueriesAndGatesOfHeads) {
  constexpr int64_t kRows = 3, kHeads = 2, kDim = 24, kCols = kHeads * kDim;
  for (const int64_t gap : {0, 5}) {
    const std::vector<double> values = Input<float>::Normal(stream_, kRows * 2 * kCols, 1).values;
    const Grid2 both(stream_, {kRows, 2 * kCols, gap}, values), queries(stream_, {kRows, kCols, gap}),
        gates(stream_, {kRows, kCols, 2 * gap}), again(stream_, {kRows, 2 * kCols, gap});
    SplitHeads(stream_, both.view(), kDim, queries.view(), gates.view());
    const std::vector<double> of_queries = queries.Values(), of_gates = gates.Values();
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const int64_t at = i / kCols * 2 * kCols + i % kCols / kDim * 2 * kDim + i % kDim;
      ASSERT_EQ(of_queries[i], values[at]) << i;
      ASSERT_EQ(of_gates[i], values[at + kDim]) << i;
    }
    const Output<BFloat16> rounded(stream_, kRows * 2 * kCols);
    JoinHeads(stream_, queries.view(), gates.view(), kDim, {again.view(), rounded.data()});
    EXPECT_EQ(again.Values(), values);
    ExpectRounded(again, rounded);
  }
  const Grid2 both(stream_, {1, 32, 0}), half(stream_, {1, 16, 0}), less(stream_, {1, 8, 0});
  EXPECT_THROW(SplitHeads(stream_, both.view(), 12, half.view(), half.view()), std::runtime_error);
  EXPECT_THROW(SplitHeads(stream_, both.view(), 8, half.view(), less.view()), std::runtime_error);
}

TEST_F(RowwiseOnGpu, FactorsOfRowsAndTheirGradientsAgreeWithFloat64) {
  for (const test::RowsCase& c : {test::RowsCase{6, 16, 0}, {3, 7, 2}, {2, 1000, 0}}) {
    for (const bool sigmoid : {false, true}) {
      SCOPED_TRACE(c.Name());
      const int64_t count = c.rows * c.cols;
      const auto factors = Input<float>::Normal(stream_, c.rows, 1);
      const std::vector<double> x = Input<float>::Normal(stream_, count, 2).values,
                                dy = Input<float>::Normal(stream_, count, 3).values;
      const Grid2 from(stream_, c, x), to(stream_, c, x), d(stream_, c, dy);
      const Output<BFloat16> rounded(stream_, count);
      const Output<float> dscales(stream_, c.rows);
      const RowScales by{factors.data(), sigmoid};
      ScaleEachRow(stream_, by, {to.view(), rounded.data()});
      ScaleEachRowGradient(stream_, by, sigmoid ? to.view() : from.view(), d.view(), dscales.data());
      const std::vector<double> found = to.Values(), found_dx = d.Values(), found_dscales = dscales.Values();
      ExpectRounded(to, rounded);
      for (int64_t row = 0; row < c.rows; ++row) {
        const double p = 1 / (1 + std::exp(-factors[row])), factor = sigmoid ? p : factors[row];
        double sum = 0, size = 0;
        for (int64_t i = row * c.cols; i < (row + 1) * c.cols; ++i) {
          ASSERT_NEAR(found[i], x[i] * factor, 8 * test::kUnit * std::abs(x[i] * factor)) << i;
          ASSERT_NEAR(found_dx[i], dy[i] * factor, 8 * test::kUnit * std::abs(dy[i] * factor)) << i;
          const double term = dy[i] * x[i] * (sigmoid ? p * (1 - p) : 1);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(found_dscales[row], sum, 48 * test::kUnit * size) << row;
      }
    }
  }
}

TEST_F(RowwiseOnGpu, AddsSumsOfColumns) {
  for (const test::RowsCase& c : test::ColumnSumsCases()) {
    const test::RowsProblem p(c);
    const Grid2 x(stream_, c, p.x);
    const Input<float> to(stream_, p.row);
    AddColumnSums(stream_, x.view(), {to.data(), 1, c.cols});
    p.ExpectColumnSums(Now(stream_, to), c.rows / 8 + 9);  // a warp has an eighth of the rows
  }
}

// The arrays of a training are one row of all its numbers: more columns than a launch takes.
TEST_F(RowwiseOnGpu, ARowMayHaveMoreColumnsThanALaunchTakes) {
  constexpr int64_t kLaunch = 67'107'840, kCols = kLaunch + 11;
  const Output<float> x(stream_, kCols), y(stream_, kCols);
  const MatrixView<float> all{x.data(), 1, kCols, kCols}, to{y.data(), 1, kCols, kCols};
  const auto at = [&](const Output<float>& of, int64_t col) {
    float value = 0;
    CopyToHost(stream_, &value, of.data() + col, sizeof value);
    Synchronize(stream_);
    return value;
  };
  const float row[] = {1, 2};
  FillBytes(stream_, x.data(), 0, kCols * static_cast<int64_t>(sizeof(float)));
  CopyToDevice(stream_, x.data() + kLaunch - 1, row, sizeof row);  // one on each side of the border
  CopyRows(stream_, MatrixView<const float>(all), to);
  EXPECT_EQ(at(y, 0), 0);
  EXPECT_EQ(at(y, kLaunch - 1), 1);
  EXPECT_EQ(at(y, kLaunch), 2);
  EXPECT_EQ(at(y, kCols - 1), 0);
  if (TooLarge(kCols, int64_t{1} << 20)) return;  // a pass over them takes the emulator some seconds
  AddRows(stream_, all, to);
  ScaleRows(stream_, 4, to);
  EXPECT_EQ(at(y, kLaunch - 1), 8);
  EXPECT_EQ(at(y, kLaunch), 16);
  ZeroRows(stream_, to);
  EXPECT_EQ(at(y, kLaunch - 1), 0);
  EXPECT_EQ(at(y, kLaunch), 0);
}

TEST_F(RowwiseOnGpu, RefusesMatricesThatDoNotFit) {
  const Grid2 a(stream_, {3, 8, 0}), b(stream_, {3, 16, 0}), c(stream_, {2, 8, 0});
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
