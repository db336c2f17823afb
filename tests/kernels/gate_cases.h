// SPDX-License-Identifier: Apache-2.0
// The unit between the projections of an MLP, activation(gate) * up or, without gate, activation(x), its gradients, and
// the soft cap of logits.
#pragma once

#include <array>
#include <string>

#include "runtime/activation.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct Unit {
  double value, slope;  // the activation and its derivative
  double size;          // the sum of the absolute values of the value's terms
};

// The forms have no cancellation for large negative x, and no term overflows.
inline Unit ActivationAt(Activation activation, double x) {
  const auto logistic = [x](double exponent, double change) {
    const double share = 1 / (1 + std::exp(-exponent)), turn = share / (1 + std::exp(exponent)) * x * change;
    const double value = x * share;
    // The relative error of the exponential is the absolute error of its argument, which has a rounding or, of GELU,
    // four.
    return Unit{value, share + (std::isnan(turn) ? 0 : turn),
                std::abs(value) * (1 + (change == 1 ? 0 : std::min(std::abs(exponent), 89.0) / 2))};
  };
  switch (activation) {
    case Activation::kSilu: return logistic(x, 1);
    case Activation::kGeluTanh:
      return logistic(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x),
                      2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x));
    case Activation::kGelu: {
      const double share = std::erfc(-x / M_SQRT2) / 2, density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      return {x * share, share + x * density, std::abs(x) * (1 + share)};
    }
    default: return x < 0 ? Unit{0, 0, 0} : Unit{x * x, 2 * x, x * x};
  }
}

struct GateCase {
  Activation activation;
  bool gated;
  int64_t rows, cols;
  double size;  // standard deviation of the gate

  std::string Name() const {
    return fmt::format("activation {}{}, {} x {}, size {}", static_cast<int>(activation), gated ? " gated" : "", rows,
                       cols, size);
  }
};

// Widths that are multiples of those of vectors, and others; gates so large that the exponential overflows, too.
inline std::vector<GateCase> GateCases() {
  constexpr std::array<std::array<int64_t, 2>, 10> kShapes = {
      {{1, 1}, {1, 9}, {4, 1}, {5, 7}, {3, 40}, {3, 67}, {2, 1030}, {3, 1048}, {5, 3000}, {40, 300}}};
  std::vector<GateCase> cases;
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2})
    for (const bool gated : {false, true})
      for (const auto& [rows, cols] : kShapes)
        for (const double size : {0.01, 1.0, 5.0, 60.0, 1000.0}) cases.push_back({activation, gated, rows, cols, size});
  return cases;
}

// The inputs of a case, and its results in float64.
struct GateProblem {
  explicit GateProblem(const GateCase& c, DType type = DType::kFloat32)
      : c(c),
        gate(Drawn(c.rows * c.cols, 1, c.size, type)),
        up(c.gated ? Drawn(c.rows * c.cols, 2, 1, type) : std::vector<double>(c.rows * c.cols, 1)),
        dout(Drawn(c.rows * c.cols, 3)) {}

  struct Results {
    std::vector<Exact> out, dgate, dup;
  };
  // Slopes cancel around their zero: their errors are relative to their terms, which are below 3.
  Results Exactly() const {
    Results r;
    for (size_t i = 0; i < gate.size(); ++i) {
      const Unit unit = ActivationAt(c.activation, gate[i]);
      // Logistic functions below the smallest normal number may be anything between 0 and that number.
      const double size = unit.size + 0x1p-104 * std::abs(gate[i]), passed = std::abs(dout[i] * up[i]);
      r.out.push_back({unit.value * up[i], size * std::abs(up[i])});
      r.dgate.push_back({unit.slope * up[i] * dout[i], std::max(1.0, std::abs(unit.slope)) * passed});
      r.dup.push_back({unit.value * dout[i], size * std::abs(dout[i])});
    }
    return r;
  }

  GateCase c;
  std::vector<double> gate, up, dout;
};

// Numbers around those where implementations of tanh change their formula, and 4,500 others.
inline std::vector<double> SoftCapInputs(float cap) {
  std::vector<double> values;
  for (const float share :
       {0.0f, 1e-30f, 1e-6f, 0.01f, 0.5f, 0.624f, 0.625f, 0.626f, 1.0f, 3.0f, 9.0f, 20.0f, 1e10f, 3e38f})
    for (const float sign : {1.0f, -1.0f}) values.push_back(sign * std::min(share * cap, 3e38f));
  const std::vector<double> others = Drawn(4500, 4, static_cast<double>(cap));
  values.insert(values.end(), others.begin(), others.end());
  return values;
}
inline std::vector<Exact> SoftCapped(float cap, const std::vector<double>& values) {
  std::vector<Exact> capped(values.size());
  for (size_t i = 0; i < values.size(); ++i) capped[i].Add(cap * std::tanh(values[i] / static_cast<double>(cap)));
  return capped;
}

}  // namespace shiftrt::test
