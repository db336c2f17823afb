// SPDX-License-Identifier: Apache-2.0
// The convolution and the rule of gated delta networks against float64, in one piece and in two, and their gradients
// against central differences of the float64 reference.
#include "kernels/gated_delta.h"

#include "kernels/elementwise.h"
#include "tests/kernels/gated_delta_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::DeltaProblem;
using test::Padded;

class GatedDeltaTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(GatedDeltaTest);

class SigmoidGateTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(SigmoidGateTest);

// The problem as the kernels take it.
struct DeltaArguments {
  explicit DeltaArguments(const DeltaProblem& p)
      : shape(p.c.shape),
        tokens(p.c.tokens()),
        x(Padded::Of(tokens, shape.channels(), p.x)),
        mixed(tokens, shape.channels()),
        a(Padded::Of(tokens, shape.value_heads, p.a)),
        b(Padded::Of(tokens, shape.value_heads, p.b)),
        out(tokens, shape.values()),
        w(p.w.begin(), p.w.end()),
        a_log(p.a_log.begin(), p.a_log.end()),
        dt_bias(p.dt_bias.begin(), p.dt_bias.end()) {
    int64_t begin = 0;
    for (const int64_t length : p.c.lengths) {
      sequences.push_back({.begin = begin, .count = length});
      begin += length;
    }
  }
  void Run(const Context& context) {
    CausalConvolution(context, shape.convolution(), sequences, x.view(), weights, mixed.view());
    GatedDelta(context, shape, sequences, Of(mixed), out.view());
  }
  DeltaInputs Of(const Padded& of) const { return {of.view(), a.view(), b.view(), decays, biases}; }

  GatedDeltaShape shape;
  int64_t tokens;
  Padded x, mixed, a, b, out;
  std::vector<float> w, a_log, dt_bias;
  TensorView weights{w.data(), DType::kFloat32, {shape.channels(), 1, shape.conv_width}};
  TensorView decays{a_log.data(), DType::kFloat32, {shape.value_heads}};
  TensorView biases{dt_bias.data(), DType::kFloat32, {shape.value_heads}};
  std::vector<DeltaSequence> sequences;
};

double LengthOf(const std::vector<double>& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

// |found - expected| relative to |expected|.
double DistanceOf(const std::vector<double>& found, const std::vector<double>& expected) {
  std::vector<double> difference(found.size());
  for (size_t i = 0; i < found.size(); ++i) difference[i] = found[i] - expected[i];
  return LengthOf(difference) / LengthOf(expected);
}

TEST_P(GatedDeltaTest, AgreesWithFloat64) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    const DeltaProblem p(c, 1);
    DeltaArguments one(p), three(p);
    one.Run(On(1));
    three.Run(On(3));
    const std::vector<double> mixed = p.Mixed();
    EXPECT_LE(DistanceOf(one.mixed.Values(), mixed), 8 * test::kUnit);
    // The state is contracted by every token, so that roundings do not add up over a sequence; those of a token are the
    // sums over key_dim.
    EXPECT_LE(DistanceOf(one.out.Values(), p.Out(mixed)), (16 + static_cast<double>(c.shape.key_dim)) * test::kUnit);
    EXPECT_TRUE(test::Identical(one.out, three.out));
  }
}

// The states and rows that a first call leaves are those from which a second one goes on, in the same memory.
TEST_P(GatedDeltaTest, GoesOnFromWhereItStopped) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    const DeltaProblem p(c, 2);
    DeltaArguments whole(p), parts(p);
    whole.Run(context_);
    for (const DeltaSequence& sequence : whole.sequences) {
      std::vector<float> state(c.shape.state_floats(), test::kNan), rows(c.shape.row_floats(), test::kNan);
      const int64_t pieces[] = {0, std::min<int64_t>(1, sequence.count), sequence.count / 2, sequence.count};
      for (int i = 0; i < 3; ++i) {
        if (pieces[i + 1] <= pieces[i]) continue;
        const bool first = pieces[i] == 0;
        parts.sequences = {{.begin = sequence.begin + pieces[i],
                            .count = pieces[i + 1] - pieces[i],
                            .state_before = first ? nullptr : state.data(),
                            .state_after = state.data(),
                            .rows_before = first ? nullptr : rows.data(),
                            .rows_after = rows.data()}};
        parts.Run(context_);
      }
    }
    EXPECT_TRUE(test::Identical(whole.out, parts.out));
  }
}

// The change of sum(dout * out) along a random direction of everything together, and of each input alone.
TEST_P(GatedDeltaTest, GradientsAreCentralDifferences) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    if (c.shape.key_dim > 64) continue;
    SCOPED_TRACE(c.Name());
    DeltaProblem p(c, 3);
    for (double& a_log : p.a_log) a_log -= 1;
    DeltaArguments in(p);
    in.Run(context_);
    const std::vector<double> dout = test::Drawn(c.tokens() * c.shape.values(), 9);
    const auto run = [&](const Context& context) {
      std::vector<Padded> gradients;
      for (const int64_t cols : {c.shape.channels(), c.shape.channels(), c.shape.value_heads, c.shape.value_heads})
        gradients.emplace_back(c.tokens(), cols);
      for (const int64_t cols : {c.shape.channels() * c.shape.conv_width, c.shape.value_heads, c.shape.value_heads})
        gradients.push_back(Padded::Of(1, cols, std::vector<double>(cols, 0.0)));
      const Padded dy = Padded::Of(c.tokens(), c.shape.values(), dout);
      GatedDeltaGradient(
          context, c.shape, in.sequences, in.Of(in.mixed), dy.view(),
          {gradients[1].view(), gradients[2].view(), gradients[3].view(), gradients[5].view(), gradients[6].view()});
      CausalConvolutionGradient(context, c.shape.convolution(), in.sequences, in.x.view(), in.weights,
                                gradients[1].view(), gradients[0].view(), gradients[4].view());
      return gradients;
    };
    const std::vector<Padded> found = run(On(1)), again = run(On(3));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(test::Identical(found[i], again[i])) << i;
    const auto loss = [&] {
      const std::vector<double> out = p.Out(p.Mixed());
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
      return sum;
    };
    const std::vector<std::pair<std::vector<double>*, const Padded*>> inputs = {
        {&p.x, &found[0]}, {&p.a, &found[2]},     {&p.b, &found[3]},
        {&p.w, &found[4]}, {&p.a_log, &found[5]}, {&p.dt_bias, &found[6]}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<double>& values = *inputs[i].first;
      const std::vector<double> gradient = inputs[i].second->Values(), kept = values;
      ASSERT_EQ(gradient.size(), values.size());
      const std::vector<double> direction = test::Drawn(std::ssize(values), 20 + i, 1 / LengthOf(gradient));
      double expected = 0, size = 0;
      for (size_t j = 0; j < gradient.size(); ++j) {
        expected += gradient[j] * direction[j];
        size += std::abs(gradient[j] * direction[j]);
      }
      constexpr double kStep = 1e-6;
      double change = 0;
      for (const double sign : {1.0, -1.0}) {
        for (size_t j = 0; j < values.size(); ++j) values[j] = kept[j] + sign * kStep * direction[j];
        change += sign * loss();
      }
      values = kept;
      EXPECT_NEAR(change / (2 * kStep), expected, 1e-5 * size + 1e-6) << "input " << i;
    }
  }
}

TEST_P(GatedDeltaTest, ShapesThatDoNotFitAreErrors) {
  const DeltaProblem p({{2, 4, 8, 12, 4}, {5}}, 1);
  DeltaArguments in(p);
  const Padded narrow(5, 3);
  EXPECT_THROW(
      CausalConvolution(context_, in.shape.convolution(), in.sequences, narrow.view(), in.weights, in.mixed.view()),
      Error);
  EXPECT_THROW(
      CausalConvolution(context_, in.shape.convolution(), in.sequences, in.x.view(), in.decays, in.mixed.view()),
      Error);
  EXPECT_THROW(GatedDelta(context_, in.shape, in.sequences, in.Of(in.mixed), narrow.view()), Error);
  EXPECT_THROW(GatedDelta(context_, in.shape, in.sequences, in.Of(narrow), in.out.view()), Error);
  in.sequences = {{.begin = 2, .count = 4}};
  EXPECT_THROW(GatedDelta(context_, in.shape, in.sequences, in.Of(in.mixed), in.out.view()), Error);
}

TEST_P(SigmoidGateTest, AgreesWithFloat64ForwardsAndBack) {
  for (const int64_t cols : {1, 7, 64, 300}) {
    SCOPED_TRACE(cols);
    const int64_t rows = 4;
    const std::vector<double> gate = test::Drawn(rows * cols, 1, 3), x = test::Drawn(rows * cols, 2),
                              dy = test::Drawn(rows * cols, 3);
    const Padded of_gate = Padded::Of(rows, cols, gate), of_x = Padded::Of(rows, cols, x);
    Padded out = of_x.Copy(), dx = Padded::Of(rows, cols, dy), dgate(rows, cols);
    SigmoidGate(context_, of_gate.view(), out.view());
    SigmoidGateGradient(context_, of_gate.view(), of_x.view(), dx.view(), dgate.view());
    std::vector<double> wanted, wanted_dx, wanted_dgate;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double p = 1 / (1 + std::exp(-gate[i]));
      wanted.push_back(x[i] * p);
      wanted_dx.push_back(dy[i] * p);
      wanted_dgate.push_back(dy[i] * x[i] * p * (1 - p));
    }
    EXPECT_LE(DistanceOf(out.Values(), wanted), 8 * test::kUnit);
    EXPECT_LE(DistanceOf(dx.Values(), wanted_dx), 8 * test::kUnit);
    EXPECT_LE(DistanceOf(dgate.Values(), wanted_dgate), 16 * test::kUnit);
  }
}

TEST_P(SigmoidGateTest, OneGateForARow) {
  for (const int64_t cols : {1, 7, 5000}) {
    SCOPED_TRACE(cols);
    const int64_t rows = 3;
    const std::vector<double> gate = test::Drawn(rows, 1, 3), x = test::Drawn(rows * cols, 2),
                              dy = test::Drawn(rows * cols, 3);
    const Padded of_gate = Padded::Of(rows, 1, gate);
    Padded out = Padded::Of(rows, cols, x), dx = Padded::Of(rows, cols, dy), dgate(rows, 1);
    SigmoidGateRows(context_, of_gate.view(), out.view());
    SigmoidGateRowsGradient(context_, of_gate.view(), out.view(), dx.view(), dgate.view());
    std::vector<double> wanted, wanted_dx, wanted_dgate(rows);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t row = i / cols;
      const double p = 1 / (1 + std::exp(-gate[row]));
      wanted.push_back(x[i] * p);
      wanted_dx.push_back(dy[i] * p);
      wanted_dgate[row] += dy[i] * x[i] * p * (1 - p);
    }
    EXPECT_LE(DistanceOf(out.Values(), wanted), 8 * test::kUnit);
    EXPECT_LE(DistanceOf(dx.Values(), wanted_dx), 8 * test::kUnit);
    EXPECT_LE(DistanceOf(dgate.Values(), wanted_dgate), 16 * test::kUnit);
    EXPECT_THROW(SigmoidGateRows(context_, Padded(rows, 2).view(), out.view()), Error);
  }
}

}  // namespace
}  // namespace shiftrt
