// SPDX-License-Identifier: Apache-2.0
// A gated delta network of tests/kernels/gated_delta_cases.h in device memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/gated_delta.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/gated_delta_cases.h"

namespace shiftrt::gpu {

using test::DeltaProblem;

inline double Distance(const std::vector<double>& found, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const double distance = std::sqrt(difference / size);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

// The problem on the device. z stands behind the channels of x.
template <typename T>
struct DeltaOnDevice {
  DeltaOnDevice(Stream stream, const DeltaProblem& p)
      : stream(stream),
        shape(p.c.shape),
        tokens(p.c.tokens()),
        z(test::Drawn(tokens * shape.values(), 40)),
        x(stream, Beside(p.x, z, shape.channels(), shape.values())),
        gates(stream, Beside(p.b, p.a, shape.value_heads, shape.value_heads)),
        conv(stream, p.w),
        a_log(stream, p.a_log),
        dt_bias(stream, p.dt_bias),
        mixed(stream, tokens * shape.channels()),
        decays(stream, tokens * 2 * shape.value_heads),
        out(stream, tokens * shape.values()),
        chunks(stream, tokens * shape.chunk_floats()),
        states(stream, 2 * std::ssize(p.c.lengths) * shape.sequence_floats()) {
    for (int64_t begin = 0; const int64_t length : p.c.lengths) {
      sequences.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(length), -1, -1});
      begin += length;
    }
  }
  // (tokens, m) and (tokens, n) as (tokens, m + n).
  static std::vector<double> Beside(const std::vector<double>& left, const std::vector<double>& right, int64_t m,
                                    int64_t n) {
    std::vector<double> both;
    for (int64_t row = 0; row * m < std::ssize(left); ++row) {
      both.insert(both.end(), left.begin() + row * m, left.begin() + (row + 1) * m);
      both.insert(both.end(), right.begin() + row * n, right.begin() + (row + 1) * n);
    }
    return both;
  }
  DeltaCall Call(const DeviceBuffer<DeltaRange>& ranges) const {
    DeltaCall call{.shape = shape,
                   .sequences = ranges.data(),
                   .sequence_count = std::ssize(sequences),
                   .states = states.data(),
                   .x = x.array(),
                   .x_stride = shape.channels() + shape.values(),
                   .b = gates.data(),
                   .a = gates.data() + shape.value_heads,
                   .gates_stride = 2 * shape.value_heads,
                   .conv = conv.data(),
                   .a_log = a_log.data(),
                   .dt_bias = dt_bias.data(),
                   .mixed = mixed.data(),
                   .decays = decays.data(),
                   .out = out.data(),
                   .chunks = chunks.data()};
    for (const DeltaRange& sequence : sequences) call.longest = std::max<int64_t>(call.longest, sequence.count);
    return call;
  }
  void Run() const {
    const DeviceBuffer<DeltaRange> ranges(stream, std::span<const DeltaRange>(sequences), "a test");
    ConvolveDelta(stream, Call(ranges));
    ApplyDeltaRule(stream, Call(ranges));
  }

  Stream stream;
  GatedDeltaShape shape;
  int64_t tokens;
  std::vector<double> z;
  Input<T> x;
  Input<float> gates, conv, a_log, dt_bias;
  Output<float> mixed, decays, out, chunks, states;
  std::vector<DeltaRange> sequences;
};

// The problem with the numbers that the device has.
template <typename T>
DeltaProblem Rounded(DeltaProblem p) {
  for (double& x : p.x) x = Exact(T(static_cast<float>(x)));
  for (std::vector<double>* const vector : {&p.w, &p.a, &p.b, &p.a_log, &p.dt_bias})
    for (double& x : *vector) x = static_cast<float>(x);
  return p;
}

}  // namespace shiftrt::gpu
