// SPDX-License-Identifier: Apache-2.0
// Gated delta networks against float64, in one piece and in two, by both forms of the rule.
#include "kernels/cuda/gated_delta.h"

#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/gated_delta_cases.h"

namespace shiftrt::gpu {
namespace {

using test::DeltaProblem;

double Distance(const std::vector<double>& found, const std::vector<double>& expected) {
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
        conv(stream, ByPlace(p)),
        rates(stream, Exponents(p.a_log)),
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
  static std::vector<double> ByPlace(const DeltaProblem& p) {
    const int64_t width = p.c.shape.conv_width, channels = p.c.shape.channels();
    std::vector<double> by_place(p.w.size());
    for (int64_t i = 0; i < std::ssize(p.w); ++i) by_place[i % width * channels + i / width] = p.w[i];
    return by_place;
  }
  static std::vector<double> Exponents(std::vector<double> x) {
    for (double& value : x) value = std::exp(value);
    return x;
  }
  DeltaCall Call(const DeviceBuffer<DeltaRange>& ranges) const {
    DeltaCall call{.shape = shape,
                   .sequences = ranges.data(),
                   .sequence_count = std::ssize(sequences),
                   .states = states.data(),
                   .x = x.array(),
                   .gates = gates.data(),
                   .conv = conv.data(),
                   .rates = rates.data(),
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
  Input<float> gates, conv, rates, dt_bias;
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

class GatedDeltaOnGpu : public CudaTest {
 protected:
  // Sums over key_dim, and those of a chunk.
  static double Tolerance(const GatedDeltaShape& shape) {
    return (64 + static_cast<double>(shape.key_dim)) * test::kUnit;
  }
};

TEST_F(GatedDeltaOnGpu, AgreesWithFloat64) {
  for (test::DeltaCase c : test::DeltaCases()) {
    // A sequence of few tokens is computed in another form beside a long one.
    for (const bool few : {false, true}) {
      if (few)
        for (int64_t& length : c.lengths) length = std::min(length, kFewDeltaTokens);
      SCOPED_TRACE(c.Name());
      ForEveryType([&](auto type) {
        using T = decltype(type);
        const DeltaProblem p = Rounded<T>(DeltaProblem(c, 1));
        const DeltaOnDevice<T> there(stream_, p);
        there.Run();
        EXPECT_LE(Distance(there.out.Values(), p.Out(p.Mixed())), Tolerance(c.shape));
      });
    }
  }
}

// Parts of a sequence in turn read one of two states and write the other.
TEST_F(GatedDeltaOnGpu, GoesOnFromWhereItStopped) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    const DeltaProblem p = Rounded<float>(DeltaProblem(c, 2));
    DeltaOnDevice<float> there(stream_, p);
    const std::vector<DeltaRange> whole = there.sequences;
    std::vector<int32_t> held(whole.size(), -1);
    for (const auto& [begin, end] : {std::pair(0, 1), {1, 2}, {2, 4}}) {  // quarters
      there.sequences.clear();
      for (size_t s = 0; s < whole.size(); ++s) {
        const int32_t from = whole[s].count * begin / 4, to = whole[s].count * end / 4;
        if (to == from) continue;
        const auto first = static_cast<int32_t>(2 * s), after = held[s] == first ? first + 1 : first;
        there.sequences.push_back({whole[s].begin + from, to - from, held[s], after});
        held[s] = after;
      }
      if (!there.sequences.empty()) there.Run();
    }
    EXPECT_LE(Distance(there.out.Values(), p.Out(p.Mixed())), Tolerance(c.shape));
  }
}

TEST_F(GatedDeltaOnGpu, NormsAndGatesTheHeads) {
  for (const test::DeltaCase& c : test::DeltaCases()) {
    SCOPED_TRACE(c.Name());
    ForEveryType([&](auto type) {
      using T = decltype(type);
      const DeltaProblem p(c, 3);
      const DeltaOnDevice<T> there(stream_, p);
      const int64_t dim = c.shape.value_dim;
      const Input<float> heads = Input<float>::Normal(stream_, c.tokens() * c.shape.values(), 5),
                         weight = Input<float>::Normal(stream_, dim, 6);
      const Output<T> to(stream_, c.tokens() * c.shape.values());
      DeltaCall call = there.Call({});
      call.out = heads.data();
      NormDelta(stream_, call, c.tokens(), weight.data(), 1e-3f, to.array());
      std::vector<double> expected;
      for (int64_t i = 0; i < std::ssize(there.z); ++i) {
        double squares = 0;
        for (int64_t j = i - i % dim; j < i - i % dim + dim; ++j) squares += heads[j] * heads[j];
        const double z = Exact(T(static_cast<float>(there.z[i])));
        expected.push_back(z / (1 + std::exp(-z)) * heads[i] / std::sqrt(squares / static_cast<double>(dim) + 1e-3f) *
                           weight[i % dim]);
      }
      EXPECT_LE(Distance(to.Values(), expected), kUnit<T> + 16 * test::kUnit);
    });
  }
}

TEST_F(GatedDeltaOnGpu, GatesOfHeadsAgreeWithFloat64) {
  constexpr int64_t kTokens = 3, kHeads = 2, kDim = 24, kMore = 40;
  ForEveryType([&](auto type) {
    using T = decltype(type);
    const int64_t width = 2 * kHeads * kDim + kMore;
    const auto both = Input<T>::Normal(stream_, kTokens * width, 1);
    const auto check = [&](auto x) {
      const ConstDeviceRows gates(both.array(), kTokens, width);
      GateHeads(stream_, gates, kDim, {DeviceArray{x.data(), x.array().dtype}, kTokens, kHeads * kDim});
      using X = std::remove_pointer_t<decltype(x.data())>;
      const std::vector<X> now = Output<X>::Fetch(stream_, x.buffer);
      std::vector<double> found, expected;
      for (int64_t i = 0; i < kTokens * kHeads * kDim; ++i) {
        const int64_t token = i / (kHeads * kDim), head = i / kDim % kHeads;
        const double gate = both[token * width + (2 * head + 1) * kDim + i % kDim];
        found.push_back(Exact(now[i]));
        expected.push_back(x[i] / (1 + std::exp(-gate)));
      }
      EXPECT_LE(Distance(found, expected), kUnit<X> + 8 * test::kUnit);
    };
    check(Input<T>::Normal(stream_, kTokens * kHeads * kDim, 2));
    check(Input<float>::Normal(stream_, kTokens * kHeads * kDim, 2));
  });
}

TEST_F(GatedDeltaOnGpu, RefusesHeadsThatAreTooLong) {
  const DeltaProblem p({{1, 1, 257, 4, 2}, {2}}, 1);
  EXPECT_THROW(DeltaOnDevice<float>(stream_, p).Run(), Error);
}

}  // namespace
}  // namespace shiftrt::gpu
