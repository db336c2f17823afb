// SPDX-License-Identifier: Apache-2.0
// Low-rank linear residual adapters on one token: h += (h P) Q + bias.
#pragma once

#include <string>

#include "tests/kernels/exact.h"

namespace shiftrt::test {

struct LraCase {
  int64_t hidden, rank;

  std::string Name() const { return fmt::format("hidden {} rank {}", hidden, rank); }
};

// A GPU takes hidden sizes and ranks in multiples of 8: such that blocks have no columns, or fewer than others, and the
// highest rank.
inline std::vector<LraCase> LraCases() {
  std::vector<LraCase> cases = {{1, 1}, {7, 3}, {33, 40}, {100, 65}, {192, 256}, {576, 256}, {4096, 96}};
  for (const int64_t hidden : {8, 64, 72, 136, 200, 520, 2176})
    for (const int64_t rank : {8, 40, 64}) cases.push_back({hidden, rank});
  return cases;
}

// The inputs of a case, and its results in float64.
struct LraProblem {
  explicit LraProblem(const LraCase& c)
      : c(c),
        p(Drawn(c.rank * c.hidden, 1)),
        q(Drawn(c.hidden * c.rank, 2)),
        bias(Drawn(c.hidden, 3)),
        h(Drawn(c.hidden, 4)) {}

  std::vector<Exact> Exactly() const {
    std::vector<Exact> inner(c.rank), out(c.hidden);
    for (int64_t r = 0; r < c.rank; ++r)
      for (int64_t j = 0; j < c.hidden; ++j) inner[r].Add(h[j] * p[r * c.hidden + j]);
    for (int64_t j = 0; j < c.hidden; ++j) {
      out[j].Add(h[j]);
      out[j].Add(bias[j]);
      for (int64_t r = 0; r < c.rank; ++r) {
        out[j].value += inner[r].value * q[j * c.rank + r];
        out[j].size += inner[r].size * std::abs(q[j * c.rank + r]);
      }
    }
    return out;
  }

  LraCase c;
  std::vector<double> p, q;     // (rank, hidden): P'; (hidden, rank): Q'
  std::vector<double> bias, h;  // (hidden)
};

}  // namespace shiftrt::test
