// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "tests/kernels/gate_cases.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/row_cases.h"

namespace shiftrt {
namespace {

using test::ActivationAt;
using test::GateCase;
using test::GateProblem;
using test::Padded;
using test::Stored;

class ElementwiseTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(ElementwiseTest);

TEST_P(ElementwiseTest, EmbedWidensRowsExactly) {
  for (const DType dtype : test::kStoredTypes) {
    for (const test::GatherCase& c : test::GatherCases()) {
      SCOPED_TRACE(c.Name());
      const test::GatherProblem problem(c, dtype);
      const Stored table(dtype, {c.table_rows, c.cols}, problem.table);
      const Padded out(problem.count(), c.cols, c.gap);
      Embed(context_, c.rows, table.view, out.view(), c.scale);
      test::ExpectEqual("rows", out.Values(), problem.Gathered());
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

struct GateFound {
  Padded out, dgate, dup;
};

GateFound Compute(const Context& context, const GateProblem& p) {
  const auto& [activation, gated, rows, cols, size] = p.c;
  const Padded gate = Padded::Of(rows, cols, p.gate), up = Padded::Of(rows, cols, p.up);
  GateFound found{gate.Copy(), Padded::Of(rows, cols, p.dout), Padded(rows, cols)};
  const MatrixView<float> factors = gated ? up.view() : MatrixView<float>(),
                          dfactors = gated ? found.dup.view() : MatrixView<float>();
  GatedUnit(context, activation, found.out.view(), factors);
  GatedUnitGradient(context, activation, gate.view(), factors, found.dgate.view(), dfactors);
  return found;
}

// The exponential has a relative error of 3e-7, which is five roundings.
void ExpectAgreement(const Context& context, const GateProblem& p, const GateFound& found) {
  const GateProblem::Results exact = p.Exactly();
  test::ExpectClose("value", found.out.Values(), exact.out, {11});
  test::ExpectClose("dgate", found.dgate.Values(), exact.dgate, {50});
  if (p.c.gated) test::ExpectClose("dup", found.dup.Values(), exact.dup, {11});
  const GateFound threaded = Compute({3, context.isa}, p);
  EXPECT_TRUE(test::Identical(found.out, threaded.out) && test::Identical(found.dgate, threaded.dgate) &&
              test::Identical(found.dup, threaded.dup));
}

// The gated units that the CPU has.
bool Takes(const GateCase& c) {
  return !c.gated || c.activation == Activation::kSilu || c.activation == Activation::kGeluTanh;
}

TEST_P(ElementwiseTest, GatedUnitsAndTheirGradientsAgreeWithFloat64) {
  for (const GateCase& c : test::GateCases()) {
    if (!Takes(c)) continue;
    SCOPED_TRACE(c.Name());
    const GateProblem problem(c);
    ExpectAgreement(context_, problem, Compute(context_, problem));
    if (HasFailure()) return;
  }
}

// Far from 0 a slope is 0 or 1, and no term of it overflows.
TEST_P(ElementwiseTest, GatedUnitsOfExtremes) {
  std::vector<double> values = {0,  -0.0, 1e-40, 1e-20, 1e-8, 0.5, 1,    5,    10,   16,
                                17, 50,   80,    95,    101,  1e4, 1e10, 1e13, 1e15, 1e30};
  for (double x = 86; x < 90; x += 0.0625) values.push_back(x);  // around the overflow of the exponential in float32
  for (size_t i = 0, n = values.size(); i < n; ++i) values.push_back(-values[i]);
  for (double& value : values) value = static_cast<float>(value);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    GateProblem problem({activation, true, 1, static_cast<int64_t>(values.size()), 1});
    problem.gate = values;
    for (double& up : problem.up) up = -1.5;
    ExpectAgreement(context_, problem, Compute(context_, problem));
    for (double& gate : problem.gate) gate = gate < 0 ? -3e38f : 3e38f;
    const GateFound far = Compute(context_, problem);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(far.dgate(0, static_cast<int64_t>(i)), problem.gate[i] < 0 ? 0 : -1.5 * problem.dout[i], 1e-6);
  }
}

TEST_P(ElementwiseTest, GatedUnitsKeepNotANumber) {
  for (const GateCase& c : test::GateCases()) {
    if (!Takes(c) || c.cols != 9 || c.size != 1) continue;
    for (int64_t at = 0; at < c.cols; ++at) {
      GateProblem problem(c);
      problem.gate[at] = test::kNan;
      const GateFound found = Compute(context_, problem);
      for (int64_t j = 0; j < c.cols; ++j) {
        EXPECT_EQ(std::isnan(found.out(0, j)), j == at) << c.Name() << " " << at << " " << j;
        EXPECT_EQ(std::isnan(found.dgate(0, j)), j == at) << c.Name() << " " << at << " " << j;
      }
    }
  }
}

// The unit with limits: gates above, and up projections beyond it on either side, have no gradient.
TEST_P(ElementwiseTest, ClampedUnitsAndTheirGradientsAgreeWithFloat64) {
  for (const ClampedSwiGlu& unit : {ClampedSwiGlu{1.702f, 7}, ClampedSwiGlu{1.25f, 0.5f}}) {
    const double alpha = unit.alpha, limit = unit.limit;
    for (const double size : {0.3, 3.0, 40.0}) {
      const int64_t rows = 3, cols = 1048;
      std::vector<double> gates = test::Drawn(rows * cols, 1, size), ups = test::Drawn(rows * cols, 2, size);
      const std::vector<double> douts = test::Drawn(rows * cols, 3);
      gates[0] = ups[1] = limit;  // at a limit, there is one
      ups[2] = -limit;
      const Padded gate = Padded::Of(rows, cols, gates), up = Padded::Of(rows, cols, ups), out = gate.Copy(),
                   dgate = Padded::Of(rows, cols, douts), dup(rows, cols);
      ClampedGatedUnit(On(3), unit, out.view(), up.view());
      ClampedGatedUnitGradient(context_, unit, gate.view(), up.view(), dgate.view(), dup.view());
      std::vector<test::Exact> value, of_gate, of_up;
      for (size_t i = 0; i < gates.size(); ++i) {
        const double g = std::min(gates[i], limit), u = std::clamp(ups[i], -limit, limit);
        const double p = 1 / (1 + std::exp(-alpha * g)), slope = p * (1 + alpha * g * (1 - p));
        const double most = std::abs(g) * p * (1 + std::min(std::abs(alpha * g), 89.0));
        value.push_back({(u + 1) * g * p, (std::abs(u) + 1) * most + 1e-36});
        of_gate.push_back({gates[i] > limit ? 0 : douts[i] * (u + 1) * slope,
                           std::abs(douts[i]) * (std::abs(u) + 1) * std::max(1.0, std::abs(alpha * g))});
        of_up.push_back({std::abs(ups[i]) > limit ? 0 : douts[i] * g * p, std::abs(douts[i]) * most + 1e-36});
      }
      test::ExpectClose("value", out.Values(), value, {11});
      test::ExpectClose("dgate", dgate.Values(), of_gate, {50});
      test::ExpectClose("dup", dup.Values(), of_up, {11});
    }
  }
  const Padded nan(1, 3), one = Padded::Of(1, 3, {1, 1, 1}), x = nan.Copy(), y = one.Copy();
  ClampedGatedUnit(context_, {1, 1}, x.view(), one.view());
  ClampedGatedUnit(context_, {1, 1}, y.view(), nan.view());
  EXPECT_TRUE(std::isnan(x(0, 1)) && std::isnan(y(0, 1)));
  EXPECT_THROW(ClampedGatedUnit(context_, {1, 1}, x.view(), Padded(1, 4).view()), Error);
}

TEST_P(ElementwiseTest, SoftCapIsTanh) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    const std::vector<double> values = test::SoftCapInputs(cap);
    const auto cols = static_cast<int64_t>(values.size() / 2);
    const Padded x = Padded::Of(2, cols, values), threaded = x.Copy();
    SoftCap(context_, cap, x.view());
    test::ExpectClose("capped", x.Values(), test::SoftCapped(cap, values), {8, DType::kFloat32, 0});
    SoftCap(On(3), cap, threaded.view());
    EXPECT_TRUE(test::Identical(x, threaded));
  }
  const Padded nan(1, 3);
  SoftCap(context_, 2, nan.view());
  for (int64_t j = 0; j < 3; ++j) EXPECT_TRUE(std::isnan(nan(0, j)));
}

TEST_P(ElementwiseTest, SumsAndDropoutAreThoseOfFloat32) {
  for (const test::RowsCase& c : test::RowsCases()) {
    SCOPED_TRACE(c.Name());
    const test::RowsProblem problem(c);
    const Padded x = Padded::Of(c.rows, c.cols, problem.x, c.gap), y = Padded::Of(c.rows, c.cols, problem.y, c.gap),
                 kept(c.rows, c.cols, c.gap);
    AddTo(context_, x.view(), y.view());
    test::ExpectEqual("sums", y.Values(), problem.Sums(1));
    ApplyDropout(context_, test::kDropout, x.view(), kept.view());
    test::ExpectEqual("kept", kept.Values(), problem.Dropped(test::kDropout));
  }
}

TEST_P(ElementwiseTest, RefusesWhatDoesNotFit) {
  const Padded x(2, 3), wide(2, 4);
  EXPECT_THROW(AddTo(context_, x.view(), wide.view()), Error);
  EXPECT_THROW(SoftCap(context_, 0, x.view()), Error);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    EXPECT_THROW(GatedUnit(context_, activation, x.view(), Padded(3, 3).view()), Error);
    EXPECT_THROW(GatedUnit(context_, activation, x.view(), wide.view()), Error);
    EXPECT_THROW(GatedUnitGradient(context_, activation, x.view(), wide.view(), x.view(), x.view()), Error);
    EXPECT_THROW(GatedUnitGradient(context_, activation, x.view(), x.view(), x.view(), wide.view()), Error);
  }
  for (const Activation activation : {Activation::kGelu, Activation::kRelu2}) {
    EXPECT_THROW(GatedUnit(context_, activation, x.view(), x.view()), Error);
    EXPECT_THROW(GatedUnitGradient(context_, activation, x.view(), x.view(), x.view(), x.view()), Error);
    EXPECT_THROW(GatedUnitGradient(context_, activation, x.view(), {}, wide.view(), {}), Error);
  }
}

// The formulas of the slopes against central differences of the values.
TEST(GateProblem, SlopesAreThoseOfTheValues) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2})
    for (double x = -6; x < 6; x += 0.37) {
      const double step = 1e-5, above = ActivationAt(activation, x + step).value;
      ASSERT_NEAR(ActivationAt(activation, x).slope, (above - ActivationAt(activation, x - step).value) / (2 * step),
                  1e-8);
    }
}

}  // namespace
}  // namespace shiftrt
