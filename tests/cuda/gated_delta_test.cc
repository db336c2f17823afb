// SPDX-License-Identifier: Apache-2.0
// Gated delta networks against float64, in one piece and in two, by both forms of the rule.
#include "kernels/cuda/gated_delta.h"

#include "kernels/cuda/rowwise.h"
#include "kernels/gated_delta.h"
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

// Against central differences of the float64 reference along random directions of each input: of everything, and of the
// tokens from one on, which end inside a chunk. Sums over tokens and heads end in each of them.
TEST_F(GatedDeltaOnGpu, GradientsAreCentralDifferences) {
  std::vector<test::DeltaCase> cases = test::DeltaCases();
  cases.push_back({{1, 3, 70, 68, 4}, {0, 64, 130, 2}});
  for (const test::DeltaCase& c : cases) {
    if (c.shape.key_dim > 100) continue;
    SCOPED_TRACE(c.Name());
    DeltaProblem p(c, 4);
    for (double& a_log : p.a_log) a_log -= 1;
    p = Rounded<float>(p);
    const DeltaOnDevice<float> there(stream_, p);
    there.Run();
    const int64_t tokens = c.tokens(), channels = c.shape.channels(), heads = c.shape.value_heads,
                  states = DeltaChunks(tokens, std::ssize(c.lengths)) * c.shape.state_floats();
    const auto dout = Input<float>::Normal(stream_, tokens * c.shape.values(), 9);
    const Output<float> added(stream_, tokens * c.shape.values()), changes(stream_, tokens * c.shape.values()),
        starts(stream_, states), ends(stream_, states), dmixed(stream_, tokens * channels),
        dx(stream_, tokens * channels), da(stream_, tokens * heads), db(stream_, tokens * heads),
        da_log(stream_, tokens * heads);
    const Input<float> dconv(stream_, std::vector<double>(p.w.size(), 0.0));
    const DeviceBuffer<DeltaRange> ranges(stream_, std::span<const DeltaRange>(there.sequences), "a test");
    DeltaCall call = there.Call(ranges);
    call.out = added.data();
    call.states = nullptr;
    DeltaGradient(stream_, {.call = call,
                            .tokens = tokens,
                            .out = there.out.data(),
                            .dout = dout.data(),
                            .changes = changes.data(),
                            .starts = starts.data(),
                            .ends = ends.data(),
                            .dmixed = dmixed.data(),
                            .dx = dx.data(),
                            .da = da.data(),
                            .db = db.data(),
                            .da_log = da_log.data(),
                            .dconv = dconv.data()});
    const auto over_tokens = [&](const std::vector<double>& rows) {
      std::vector<double> sums(heads, 0.0);
      for (size_t i = 0; i < rows.size(); ++i) sums[i % heads] += rows[i];
      return sums;
    };
    const auto loss = [&] {
      const std::vector<double> out = p.Out(p.Mixed());
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[static_cast<int64_t>(i)];
      return sum;
    };
    struct Of {
      std::vector<double>* values;
      std::vector<double> gradient;
      size_t from;  // the element at which the second direction begins
    };
    const auto late = static_cast<size_t>(tokens * 2 / 3);
    Of inputs[] = {{&p.x, dx.Values(), late * channels},        {&p.a, da.Values(), late * heads},
                   {&p.b, db.Values(), late * heads},           {&p.w, Now(stream_, dconv), p.w.size() / 2},
                   {&p.a_log, over_tokens(da_log.Values()), 0}, {&p.dt_bias, over_tokens(da.Values()), 0}};
    for (size_t i = 0; i < std::size(inputs); ++i) {
      std::vector<double>& values = *inputs[i].values;
      const std::vector<double>& gradient = inputs[i].gradient;
      ASSERT_EQ(gradient.size(), values.size());
      for (const size_t from : {size_t{0}, inputs[i].from}) {
        double length = 0, expected = 0, size = 0;
        for (const double g : gradient) length += g * g;
        std::vector<double> direction = test::Drawn(std::ssize(values), 20 + i, 1 / std::sqrt(length));
        std::fill_n(direction.begin(), from, 0.0);
        for (size_t j = 0; j < gradient.size(); ++j) {
          expected += gradient[j] * direction[j];
          size += std::abs(gradient[j] * direction[j]);
        }
        constexpr double kStep = 1e-6;
        const std::vector<double> kept = values;
        double change = 0;
        for (const double sign : {1.0, -1.0}) {
          for (size_t j = 0; j < values.size(); ++j) values[j] = kept[j] + sign * kStep * direction[j];
          change += sign * loss();
        }
        values = kept;
        EXPECT_NEAR(change / (2 * kStep), expected, 2e-5 * size + 1e-6) << "input " << i << " from " << from;
      }
    }
  }
}

// Element by element, and with heads of the models' size: the gradients of the CPU, which adds up token by token.
TEST_F(GatedDeltaOnGpu, GradientsAgreeWithTheCpu) {
  for (const test::DeltaCase& c : {test::DeltaCase{{1, 2, 128, 128, 4}, {67}}, {{1, 1, 256, 200, 2}, {5, 66}}}) {
    SCOPED_TRACE(c.Name());
    const DeltaProblem p = Rounded<float>(DeltaProblem(c, 6));
    const DeltaOnDevice<float> there(stream_, p);
    there.Run();
    const GatedDeltaShape& shape = c.shape;
    const int64_t tokens = c.tokens(), channels = shape.channels(), heads = shape.value_heads,
                  states = DeltaChunks(tokens, std::ssize(c.lengths)) * shape.state_floats();
    const auto dout = Input<float>::Normal(stream_, tokens * shape.values(), 9);
    const Output<float> added(stream_, tokens * shape.values()), changes(stream_, tokens * shape.values()),
        starts(stream_, states), ends(stream_, states), dmixed(stream_, tokens * channels),
        dx(stream_, tokens * channels), da(stream_, tokens * heads), db(stream_, tokens * heads),
        da_log(stream_, tokens * heads);
    const DeviceBuffer<DeltaRange> ranges(stream_, std::span<const DeltaRange>(there.sequences), "a test");
    DeltaCall call = there.Call(ranges);
    call.out = added.data();
    DeltaGradient(stream_, {.call = call,
                            .tokens = tokens,
                            .out = there.out.data(),
                            .dout = dout.data(),
                            .changes = changes.data(),
                            .starts = starts.data(),
                            .ends = ends.data(),
                            .dmixed = dmixed.data(),
                            .dx = dx.data(),
                            .da = da.data(),
                            .db = db.data(),
                            .da_log = da_log.data()});
    const auto floats = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
    std::vector<float> x = floats(p.x), w = floats(p.w), a = floats(p.a), b = floats(p.b), a_log = floats(p.a_log),
                       dt_bias = floats(p.dt_bias), dy = floats(dout.values), mixed(x.size()), of_mixed(x.size()),
                       of_x(x.size()), of_a(a.size()), of_b(b.size());
    const TensorView weights{w.data(), DType::kFloat32, {channels, 1, shape.conv_width}},
        decays{a_log.data(), DType::kFloat32, {heads}}, biases{dt_bias.data(), DType::kFloat32, {heads}};
    std::vector<DeltaSequence> sequences;
    for (const DeltaRange& range : there.sequences) sequences.push_back({.begin = range.begin, .count = range.count});
    const auto rows = [&](std::vector<float>& of) {
      return MatrixView<float>(of.data(), tokens, std::ssize(of) / tokens);
    };
    const Context context{.threads = 2, .isa = BestIsa()};
    CausalConvolution(context, shape, sequences, rows(x), weights, rows(mixed));
    GatedDeltaGradient(context, shape, sequences, {rows(mixed), rows(a), rows(b), decays, biases}, rows(dy),
                       {rows(of_mixed), rows(of_a), rows(of_b), {}, {}});
    CausalConvolutionGradient(context, shape, sequences, rows(x), weights, rows(of_mixed), rows(of_x), {});
    const auto doubles = [](const std::vector<float>& of) { return std::vector<double>(of.begin(), of.end()); };
    const double tolerance = 2 * Tolerance(shape);
    EXPECT_LE(Distance(dx.Values(), doubles(of_x)), tolerance);
    EXPECT_LE(Distance(da.Values(), doubles(of_a)), tolerance);
    EXPECT_LE(Distance(db.Values(), doubles(of_b)), tolerance);
  }
}

TEST_F(GatedDeltaOnGpu, RefusesHeadsThatAreTooLong) {
  const DeltaProblem p({{1, 1, 257, 4, 2}, {2}}, 1);
  EXPECT_THROW(DeltaOnDevice<float>(stream_, p).Run(), Error);
}

}  // namespace
}  // namespace shiftrt::gpu
