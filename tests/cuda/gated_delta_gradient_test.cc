// SPDX-License-Identifier: Apache-2.0
// Gradients of gated delta networks, of whole sequences in chunks.
#include "kernels/gated_delta.h"
#include "runtime/context.h"
#include "tests/cuda/gated_delta_problem.h"

namespace shiftrt::gpu {
namespace {

class GatedDeltaGradientOnGpu : public CudaTest {};

// Against central differences of the float64 reference along random directions of each input: of everything, and of the
// tokens from one on, which end inside a chunk. Sums over tokens and heads end in each of them.
TEST_F(GatedDeltaGradientOnGpu, GradientsAreCentralDifferences) {
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
TEST_F(GatedDeltaGradientOnGpu, GradientsAgreeWithTheCpu) {
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
    CausalConvolution(context, shape.convolution(), sequences, rows(x), weights, rows(mixed));
    GatedDeltaGradient(context, shape, sequences, {rows(mixed), rows(a), rows(b), decays, biases}, rows(dy),
                       {rows(of_mixed), rows(of_a), rows(of_b), {}, {}});
    CausalConvolutionGradient(context, shape.convolution(), sequences, rows(x), weights, rows(of_mixed), rows(of_x),
                              {});
    const auto doubles = [](const std::vector<float>& of) { return std::vector<double>(of.begin(), of.end()); };
    const double tolerance = (128 + 2 * static_cast<double>(shape.key_dim)) * test::kUnit;
    EXPECT_LE(Distance(dx.Values(), doubles(of_x)), tolerance);
    EXPECT_LE(Distance(da.Values(), doubles(of_a)), tolerance);
    EXPECT_LE(Distance(db.Values(), doubles(of_b)), tolerance);
  }
}

}  // namespace
}  // namespace shiftrt::gpu
