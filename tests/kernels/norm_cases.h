// SPDX-License-Identifier: Apache-2.0
// Norms of groups of n adjacent columns, and their gradients: RMSNorm of rows and of heads, and LayerNorm.
#pragma once

#include <string>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct NormCase {
  int64_t rows, groups, n;
  double size = 1, mean = 0;  // the standard deviation and the mean of x
  bool centred = false;       // LayerNorm
  bool biased = false;
  float offset = 0;  // added to the weights
  float eps = 1e-5f;

  int64_t cols() const { return groups * n; }
  std::string Name() const {
    return fmt::format("{} rows of {} groups of {}, {} +- {}{}, offset {}", rows, groups, n, mean, size,
                       centred ? ", centred" : "", offset);
  }
};

// Rows of zeros to thousands, groups of one to thousands of columns, and rows far from 0, whose variance would cancel
// as a difference of sums.
inline std::vector<NormCase> NormCases() {
  std::vector<NormCase> cases;
  for (const bool centred : {false, true}) {
    for (const float offset : {0.0f, 1.0f}) {
      for (const double size : {1e-4, 1.0, 1e4})
        for (const int64_t rows : {1, 2, 33, 70})
          for (const int64_t n : {centred ? 2 : 1, 7, 64, 300})
            cases.push_back(
                {rows, 1, n, size, centred && rows > 2 ? 10 * size : 0, centred, centred && rows != 2, offset});
      for (const int64_t n : {8, 100, 512, 520, 1000, 2048, 4104, 5120})
        for (const int64_t rows : {3, 11})
          cases.push_back({rows, 1, n, 2, centred && rows == 3 ? 100.0 : 0.0, centred, centred && rows == 3, offset});
      for (const int64_t n : {4, 6, 64, 80, 128, 256})
        for (const int64_t groups : {1, 3, 7})
          if (!centred) cases.push_back({19, groups, n, 2, 0, false, false, offset, 1e-6f});
    }
  }
  return cases;
}

// The inputs of a case, and its results in float64.
struct NormProblem {
  explicit NormProblem(const NormCase& c, DType weights = DType::kFloat32)
      : c(c),
        x(Drawn(c.rows * c.cols(), 1, c.size)),
        weight(Drawn(c.n, 2, 1, weights)),
        bias(c.biased ? Drawn(c.n, 3, 1, weights) : std::vector<double>(c.n)),
        dy(Drawn(c.rows * c.cols(), 4)),
        dx(Drawn(c.rows * c.cols(), 5)),
        dweight(Drawn(c.n, 6)),
        dbias(Drawn(c.n, 7)) {
    for (double& value : x) value = static_cast<float>(value + c.mean);
  }

  struct Results {
    std::vector<Exact> out;
    std::vector<Exact> dx, sum;  // the gradient of x; the same with `dx` added
    std::vector<Exact> dweight, dbias;
  };
  // `mean_error`: the error of a mean relative to the size of x, in roundings of the other terms: 0 for sums in
  // float64.
  Results Exactly(double mean_error) const {
    Results r{{}, {}, {}, std::vector<Exact>(c.n), std::vector<Exact>(c.n)};
    for (int64_t j = 0; j < c.n; ++j) {
      r.dweight[j].Add(dweight[j]);
      r.dbias[j].Add(dbias[j]);
    }
    const auto n = static_cast<double>(c.n);
    for (int64_t begin = 0; begin < c.rows * c.cols(); begin += c.n) {
      double mean = 0, squares = 0;
      for (int64_t j = 0; c.centred && j < c.n; ++j) mean += x[begin + j] / n;
      for (int64_t j = 0; j < c.n; ++j) squares += (x[begin + j] - mean) * (x[begin + j] - mean);
      const double scale = 1 / std::sqrt(squares / n + static_cast<double>(c.eps));
      std::vector<Exact> unit(c.n);  // the rows before their weights
      std::vector<double> passed(c.n);
      Exact all, along;
      for (int64_t j = 0; j < c.n; ++j) {
        const double at = x[begin + j];
        unit[j].Add((at - mean) * scale);
        if (c.centred) unit[j].size += mean_error * (std::abs(at) + std::abs(mean)) * scale;
        passed[j] = Gain(j) * dy[begin + j];
        if (c.centred) all.Add(passed[j] / n);
        along.Add(passed[j] * unit[j].value / n);
      }
      for (int64_t j = 0; j < c.n; ++j) {
        r.out.push_back({unit[j].value * Gain(j), unit[j].size * std::abs(Gain(j))});
        r.out.back().Add(bias[j]);
        r.dx.push_back({scale * (passed[j] - all.value - unit[j].value * along.value),
                        scale * (std::abs(passed[j]) + all.size + unit[j].size * along.size)});
        r.sum.push_back(r.dx.back());
        r.sum.back().Add(dx[begin + j]);
        r.dweight[j].value += dy[begin + j] * unit[j].value;
        r.dweight[j].size += std::abs(dy[begin + j]) * unit[j].size;
        r.dbias[j].Add(dy[begin + j]);
      }
    }
    return r;
  }
  // The sum is in float32, as in Gemma2RMSNorm of transformers.
  double Gain(int64_t j) const { return c.offset + static_cast<float>(weight[j]); }

  NormCase c;
  std::vector<double> x, weight, bias, dy;
  std::vector<double> dx, dweight, dbias;  // before gradients are added
};

}  // namespace shiftrt::test
