// SPDX-License-Identifier: Apache-2.0
// Gated delta networks between their first products and the norm of their heads, token by token in float64.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/gated_delta_shape.h"
#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct DeltaCase {
  GatedDeltaShape shape;
  std::vector<int64_t> lengths;

  int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
  std::string Name() const {
    return fmt::format("{} of {} heads, ({}, {}), convolution over {}, {} tokens", shape.key_heads, shape.value_heads,
                       shape.key_dim, shape.value_dim, shape.conv_width, fmt::join(lengths, " + "));
  }
};

inline std::vector<DeltaCase> DeltaCases() {
  return {{{1, 1, 1, 1, 1}, {3}},       {{1, 2, 5, 3, 4}, {1, 7, 2}}, {{2, 4, 8, 12, 4}, {5, 130, 64}},
          {{2, 2, 7, 40, 3}, {65, 1}},  {{1, 3, 16, 64, 2}, {20}},    {{2, 2, 128, 128, 4}, {9, 3}},
          {{1, 1, 33, 100, 4}, {70, 3}}};
}

// All inputs in float64, and what the reference computes from them.
struct DeltaProblem {
  DeltaCase c;
  std::vector<double> x, w, a, b, a_log, dt_bias;  // x (tokens, channels), w (channels, conv_width)

  DeltaProblem(const DeltaCase& c, uint64_t seed)
      : c(c),
        x(Drawn(c.tokens() * c.shape.channels(), seed)),
        w(Drawn(c.shape.channels() * c.shape.conv_width, seed + 1)),
        a(Drawn(c.tokens() * c.shape.value_heads, seed + 2)),
        b(Drawn(c.tokens() * c.shape.value_heads, seed + 3)),
        a_log(Drawn(c.shape.value_heads, seed + 4, 2)),
        dt_bias(Drawn(c.shape.value_heads, seed + 5)) {}

  // (tokens, channels): the convolution and SiLU.
  std::vector<double> Mixed() const {
    const int64_t channels = c.shape.channels(), width = c.shape.conv_width;
    std::vector<double> mixed(x.size());
    int64_t begin = 0;
    for (const int64_t length : c.lengths) {
      for (int64_t t = 0; t < length; ++t)
        for (int64_t i = 0; i < channels; ++i) {
          double sum = 0;
          for (int64_t j = std::max<int64_t>(0, width - 1 - t); j < width; ++j)
            sum += w[i * width + j] * x[(begin + t - width + 1 + j) * channels + i];
          mixed[(begin + t) * channels + i] = sum / (1 + std::exp(-sum));
        }
      begin += length;
    }
    return mixed;
  }
  // (tokens, values) from (tokens, channels).
  std::vector<double> Out(const std::vector<double>& mixed) const {
    std::vector<double> out(c.tokens() * c.shape.values());
    int64_t begin = 0;
    for (const int64_t length : c.lengths) {
      for (int64_t head = 0; head < c.shape.value_heads; ++head) Head(mixed, begin, length, head, out);
      begin += length;
    }
    return out;
  }

 private:
  static std::vector<double> Unit(const double* x, int64_t n, double scale) {
    double squares = 1e-6;
    for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
    std::vector<double> unit(x, x + n);
    for (double& u : unit) u *= scale / std::sqrt(squares);
    return unit;
  }
  void Head(const std::vector<double>& mixed, int64_t begin, int64_t length, int64_t head,
            std::vector<double>& out) const {
    const GatedDeltaShape& s = c.shape;
    std::vector<double> state(s.key_dim * s.value_dim, 0.0);
    for (int64_t t = begin; t < begin + length; ++t) {
      const double* const row = mixed.data() + t * s.channels();
      const int64_t at = head / (s.value_heads / s.key_heads) * s.key_dim;
      const auto q = Unit(row + at, s.key_dim, 1 / std::sqrt(static_cast<double>(s.key_dim)));
      const auto k = Unit(row + s.keys() + at, s.key_dim, 1);
      const double* const v = row + 2 * s.keys() + head * s.value_dim;
      const double speed = std::log1p(std::exp(a[t * s.value_heads + head] + dt_bias[head]));
      const double decay = std::exp(-std::exp(a_log[head]) * speed);
      const double beta = 1 / (1 + std::exp(-b[t * s.value_heads + head]));
      for (double& x : state) x *= decay;
      for (int64_t j = 0; j < s.value_dim; ++j) {
        double held = 0, sum = 0;
        for (int64_t i = 0; i < s.key_dim; ++i) held += k[i] * state[i * s.value_dim + j];
        for (int64_t i = 0; i < s.key_dim; ++i) state[i * s.value_dim + j] += k[i] * beta * (v[j] - held);
        for (int64_t i = 0; i < s.key_dim; ++i) sum += q[i] * state[i * s.value_dim + j];
        out[t * s.values() + head * s.value_dim + j] = sum;
      }
    }
  }
};

}  // namespace shiftrt::test
