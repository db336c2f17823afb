// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/cpu/simd_body.h"
#include "kernels/row_parts.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

void CheckActivation(Activation activation, bool gated) {
  Check(!gated || activation == Activation::kSilu || activation == Activation::kGeluTanh,
        "a gated unit with an activation that is neither SiLU nor the tanh form of GELU");
}

void Gelu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1 + std::erf(x[i] * static_cast<float>(M_SQRT1_2)));
}

// With p(x) the density and P(x) the distribution of the normal distribution, gelu(x) = x P(x).
void GeluGradient(const float* x, float* dx, int64_t n) {
  constexpr auto kDensity = static_cast<float>(M_2_SQRTPI * M_SQRT1_2 / 2);
  for (int64_t i = 0; i < n; ++i)
    dx[i] *=
        0.5f * (1 + std::erf(x[i] * static_cast<float>(M_SQRT1_2))) + x[i] * kDensity * std::exp(-0.5f * x[i] * x[i]);
}

// The comparisons keep a NaN.
void Relu2(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i] * x[i];
}

void Relu2Gradient(const float* x, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] *= x[i] < 0 ? 0 : 2 * x[i];
}

}  // namespace

void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out,
           float scale) {
  const int64_t vocab = table.rows(), hidden = table.cols();
  Check(out.rows == static_cast<int64_t>(tokens.size()) && out.cols == hidden,
        "embedding {} tokens of width {} into ({}, {}) does not fit", tokens.size(), hidden, out.rows, out.cols);
  for (size_t t = 0; t < tokens.size(); ++t)
    Check(tokens[t] >= 0 && tokens[t] < vocab, "token {} at position {} is outside the vocabulary of {}", tokens[t], t,
          vocab);
  const auto* bytes = static_cast<const std::byte*>(table.data);
  const auto row_bytes = BytesOf(table.dtype, hidden);
  ParallelFor(context, out.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::vector<float> row = Widened({bytes + tokens[t] * row_bytes, table.dtype, {hidden}});
      for (int64_t j = 0; j < hidden; ++j) out(t, j) = row[j] * scale;
    }
  });
}

void GatedUnit(const Context& context, Activation activation, MatrixView<float> gate, MatrixView<const float> up) {
  const bool gated = up.data != nullptr;
  CheckActivation(activation, gated);
  Check(!gated || (gate.rows == up.rows && gate.cols == up.cols), "gated unit of ({}, {}) and ({}, {}) does not fit",
        gate.rows, gate.cols, up.rows, up.cols);
  const SimdBody& body = BodyFor(context.isa);
  ForEachRowPart(context, gate, [&](int64_t row, int64_t col, int64_t count) {
    float* const at = gate.row(row) + col;
    const float* const factors = gated ? up.row(row) + col : nullptr;
    switch (activation) {
      case Activation::kSilu: return body.swiglu(at, factors, count);
      case Activation::kGeluTanh: return body.geglu(at, factors, count);
      case Activation::kGelu: return Gelu(at, count);
      case Activation::kRelu2: return Relu2(at, count);
    }
  });
}

void GatedUnitGradient(const Context& context, Activation activation, MatrixView<const float> gate,
                       MatrixView<const float> up, MatrixView<float> dgate, MatrixView<float> dup) {
  const bool gated = up.data != nullptr;
  CheckActivation(activation, gated);
  std::vector<MatrixView<const float>> others = {dgate};
  if (gated) others.insert(others.end(), {up, dup});
  for (const MatrixView<const float>& other : others)
    Check(gate.rows == other.rows && gate.cols == other.cols,
          "gradient of a gated unit of ({}, {}) and ({}, {}) does not fit", gate.rows, gate.cols, other.rows,
          other.cols);
  const SimdBody& body = BodyFor(context.isa);
  ForEachRowPart(context, dgate, [&](int64_t row, int64_t col, int64_t count) {
    const float* const at = gate.row(row) + col;
    const float* const factors = gated ? up.row(row) + col : nullptr;
    float *const to = dgate.row(row) + col, *const to_up = gated ? dup.row(row) + col : nullptr;
    switch (activation) {
      case Activation::kSilu: return body.swiglu_gradient(at, factors, to, to_up, count);
      case Activation::kGeluTanh: return body.geglu_gradient(at, factors, to, to_up, count);
      case Activation::kGelu: return GeluGradient(at, to, count);
      case Activation::kRelu2: return Relu2Gradient(at, to, count);
    }
  });
}

namespace {

// Calls use(p, first, count) for runs of `count` elements from `first` on with their values of 1 / (1 + exp(-f(x))).
template <typename Map, typename Use>
void WithSigmoidsOf(const SimdBody& body, const Map& f, const float* x, int64_t n, const Use& use) {
  std::array<float, 256> p;
  for (int64_t first = 0; first < n; first += std::ssize(p)) {
    const int64_t count = std::min<int64_t>(std::ssize(p), n - first);
    for (int64_t i = 0; i < count; ++i) p[i] = -f(x[first + i]);
    body.exponentiate(p.data(), count, 0);
    for (int64_t i = 0; i < count; ++i) p[i] = 1 / (1 + p[i]);
    use(p.data(), first, count);
  }
}
template <typename Use>
void WithSigmoids(const SimdBody& body, const float* x, int64_t n, const Use& use) {
  WithSigmoidsOf(
      body, [](float value) { return value; }, x, n, use);
}

// The comparisons keep a NaN.
float Below(float x, float limit) { return x > limit ? limit : x; }
float Within(float x, float limit) { return x < -limit ? -limit : Below(x, limit); }

void CheckGates(MatrixView<const float> gate, MatrixView<const float> x) {
  Check(gate.rows == x.rows && gate.cols == x.cols, "gates of ({}, {}) for ({}, {}) do not fit", gate.rows, gate.cols,
        x.rows, x.cols);
}

void CheckRowGates(MatrixView<const float> gate, MatrixView<const float> x) {
  Check(gate.rows == x.rows && gate.cols == 1, "gates of ({}, {}) for ({}, {}), expected one for each row", gate.rows,
        gate.cols, x.rows, x.cols);
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void ClampedGatedUnit(const Context& context, const ClampedSwiGlu& unit, MatrixView<float> gate,
                      MatrixView<const float> up) {
  CheckGates(gate, up);
  const SimdBody& body = BodyFor(context.isa);
  const auto argument = [&](float g) { return unit.alpha * Below(g, unit.limit); };
  ForEachRowPart(context, gate, [&](int64_t row, int64_t col, int64_t count) {
    float* const g = gate.row(row) + col;
    const float* const u = up.row(row) + col;
    WithSigmoidsOf(body, argument, g, count, [&](const float* p, int64_t first, int64_t n) {
      for (int64_t i = first; i < first + n; ++i)
        g[i] = (Within(u[i], unit.limit) + 1) * (Below(g[i], unit.limit) * p[i - first]);
    });
  });
}

// With p = sigmoid(alpha g), the slope of g p is p (1 + alpha g (1 - p)).
void ClampedGatedUnitGradient(const Context& context, const ClampedSwiGlu& unit, MatrixView<const float> gate,
                              MatrixView<const float> up, MatrixView<float> dgate, MatrixView<float> dup) {
  for (const MatrixView<const float>& other : {up, MatrixView<const float>(dgate), MatrixView<const float>(dup)})
    CheckGates(gate, other);
  const SimdBody& body = BodyFor(context.isa);
  const auto argument = [&](float g) { return unit.alpha * Below(g, unit.limit); };
  ForEachRowPart(context, dgate, [&](int64_t row, int64_t col, int64_t count) {
    const float *const gates = gate.row(row) + col, *const ups = up.row(row) + col;
    float *const d = dgate.row(row) + col, *const to_up = dup.row(row) + col;
    WithSigmoidsOf(body, argument, gates, count, [&](const float* sigmoids, int64_t first, int64_t n) {
      for (int64_t i = first; i < first + n; ++i) {
        const float p = sigmoids[i - first], g = Below(gates[i], unit.limit), u = Within(ups[i], unit.limit);
        to_up[i] = ups[i] < -unit.limit || ups[i] > unit.limit ? 0 : d[i] * (g * p);
        d[i] *= gates[i] > unit.limit ? 0 : (u + 1) * (p * (1 + unit.alpha * g * (1 - p)));
      }
    });
  });
}

void SigmoidGate(const Context& context, MatrixView<const float> gate, MatrixView<float> x) {
  CheckGates(gate, x);
  const SimdBody& body = BodyFor(context.isa);
  ForEachRowPart(context, x, [&](int64_t row, int64_t col, int64_t count) {
    float* const to = x.row(row) + col;
    WithSigmoids(body, gate.row(row) + col, count, [&](const float* p, int64_t first, int64_t n) {
      for (int64_t i = 0; i < n; ++i) to[first + i] *= p[i];
    });
  });
}

void SigmoidGateGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> x,
                         MatrixView<float> dy, MatrixView<float> dgate) {
  for (const MatrixView<const float>& other : {x, MatrixView<const float>(dy), MatrixView<const float>(dgate)})
    CheckGates(gate, other);
  const SimdBody& body = BodyFor(context.isa);
  ForEachRowPart(context, dy, [&](int64_t row, int64_t col, int64_t count) {
    const float* const from = x.row(row) + col;
    float *const d = dy.row(row) + col, *const to = dgate.row(row) + col;
    WithSigmoids(body, gate.row(row) + col, count, [&](const float* p, int64_t first, int64_t n) {
      for (int64_t i = first; i < first + n; ++i) {
        to[i] = d[i] * from[i] * p[i - first] * (1 - p[i - first]);
        d[i] *= p[i - first];
      }
    });
  });
}

void SigmoidGateRows(const Context& context, MatrixView<const float> gate, MatrixView<float> x) {
  CheckRowGates(gate, x);
  ForEachRowPart(context, x, [&](int64_t row, int64_t col, int64_t count) {
    const float p = Sigmoid(gate(row, 0));
    for (float& value : std::span(x.row(row) + col, static_cast<size_t>(count))) value *= p;
  });
}

void SigmoidGateRowsGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> y,
                             MatrixView<float> dy, MatrixView<float> dgate) {
  for (const MatrixView<const float>& gated : {y, MatrixView<const float>(dy)}) CheckRowGates(gate, gated);
  CheckRowGates(dgate, y);
  ParallelFor(context, y.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float p = Sigmoid(gate(row, 0));
      double sum = 0;
      for (int64_t i = 0; i < y.cols; ++i) {
        sum += static_cast<double>(dy(row, i)) * static_cast<double>(y(row, i));
        dy(row, i) *= p;
      }
      dgate(row, 0) = static_cast<float>(sum) * (1 - p);
    }
  });
}

void SoftCap(const Context& context, float cap, MatrixView<float> x) {
  Check(cap > 0, "a soft cap of {} is not positive", cap);
  const SimdBody& body = BodyFor(context.isa);
  ForEachRowPart(context, x,
                 [&](int64_t row, int64_t col, int64_t count) { body.soft_cap(x.row(row) + col, count, 1, cap); });
}

void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y) {
  Check(x.rows == y.rows && x.cols == y.cols, "sum of ({}, {}) and ({}, {}) does not fit", x.rows, x.cols, y.rows,
        y.cols);
  ForEachRowPart(context, y, [&](int64_t row, int64_t col, int64_t count) {
    const float* const from = x.row(row) + col;
    float* const to = y.row(row) + col;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) to[j] += from[j];
  });
}

}  // namespace shiftrt
