// SPDX-License-Identifier: Apache-2.0
// Times the kernels of gated delta networks and of mixtures of experts.
#include "bench/gpu_kernel_bench.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"

namespace shiftrt {

using gpu::DeviceBuffer;
using gpu::Stream;

namespace {

// Arrays of a gated delta network for kTokens tokens of one sequence, which begins, or for one that goes on.
struct DeltaArrays {
  DeltaArrays(Stream stream, const GatedDeltaShape& s)
      : shape(s),
        x(RandomOnDevice<BFloat16>(stream, kTokens * (s.channels() + s.values()))),
        wide(RandomOnDevice<float>(stream, kTokens * s.channels())),
        gates(RandomOnDevice<float>(stream, kTokens * 2 * s.value_heads)),
        weights(RandomOnDevice<float>(stream, s.channels() * s.conv_width)),
        mixed(stream, kTokens * s.channels(), kBench),
        decays(stream, kTokens * 2 * s.value_heads, kBench),
        out(stream, kTokens * s.values(), kBench),
        chunks(stream, kTokens * s.chunk_floats(), kBench),
        to(stream, kTokens * s.values(), kBench),
        sequences(stream, std::span<const gpu::DeltaRange>(ranges), kBench) {}
  gpu::DeltaCall Call(bool one) const {
    return {.shape = shape,
            .sequences = sequences.data() + (one ? 1 : 0),
            .sequence_count = 1,
            .longest = one ? 1 : kTokens,
            .x = Array(x),
            .x_stride = shape.channels() + shape.values(),
            .b = gates.data(),
            .a = gates.data() + shape.value_heads,
            .gates_stride = 2 * shape.value_heads,
            .conv = weights.data(),
            .a_log = weights.data(),
            .dt_bias = weights.data(),
            .mixed = mixed.data(),
            .decays = decays.data(),
            .out = out.data(),
            .chunks = chunks.data()};
  }

  GatedDeltaShape shape;
  std::vector<gpu::DeltaRange> ranges = {{0, kTokens, -1, -1}, {0, 1, 0, 1}};
  DeviceBuffer<BFloat16> x;
  DeviceBuffer<float> wide, gates, weights, mixed, decays, out, chunks;
  DeviceBuffer<BFloat16> to;
  DeviceBuffer<gpu::DeltaRange> sequences;
};

}  // namespace

// The rule counts 7 FLOP per element of the states and token, and its gradient those three times.
void BenchDelta(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GatedDeltaShape& s = bench.shape.delta;
  if (s.value_heads == 0) return;
  const DeltaArrays of(stream, s);
  const gpu::DeltaCall many = of.Call(false);
  const double rows = AsDouble(kTokens), channels = AsDouble(s.channels()), values = AsDouble(s.values()),
               flops = 7 * rows * AsDouble(s.state_floats());
  bench.Time("gated_delta", "convolution and gates, 4096 tokens", rows * 6 * channels, 0,
             [&] { gpu::ConvolveDelta(stream, many); });
  bench.Time("gated_delta", "delta rule, 4096 tokens", rows * 4 * (channels + values), flops,
             [&] { gpu::ApplyDeltaRule(stream, many); });
  bench.Time("gated_delta", "norm and gate of heads, 4096 tokens", rows * 8 * values, 0,
             [&] { gpu::NormDelta(stream, many, kTokens, of.weights.data(), 1e-6f, Array(of.to)); });
  Pieces<float> states(stream, 2 * s.sequence_floats());
  bench.Time("gated_delta", "delta rule, one token", AsDouble(8 * s.state_floats()), 0, [&] {
    gpu::DeltaCall one = of.Call(true);
    one.states = static_cast<float*>(states.Next().data);
    gpu::ApplyDeltaRule(stream, one);
  });
  const int64_t chunks = gpu::DeltaChunks(kTokens, 1) * s.state_floats();
  const DeviceBuffer<float> added(stream, kTokens * s.values(), kBench), changes(stream, kTokens * s.values(), kBench),
      starts(stream, chunks, kBench), ends(stream, chunks, kBench), dmixed(stream, kTokens * s.channels(), kBench),
      dx(stream, kTokens * s.channels(), kBench), of_gates(stream, 3 * kTokens * s.value_heads, kBench);
  gpu::DeltaGradientCall gradient{.call = many,
                                  .tokens = kTokens,
                                  .out = of.out.data(),
                                  .dout = of.wide.data(),
                                  .changes = changes.data(),
                                  .starts = starts.data(),
                                  .ends = ends.data(),
                                  .dmixed = dmixed.data(),
                                  .dx = dx.data(),
                                  .da = of_gates.data(),
                                  .db = of_gates.data() + kTokens * s.value_heads,
                                  .da_log = of_gates.data() + 2 * kTokens * s.value_heads};
  gradient.call.x = Array(of.wide);
  gradient.call.x_stride = s.channels();
  gradient.call.out = added.data();
  bench.Time("gated_delta_gradient", "gradient, 4096 tokens", rows * 8 * (channels + values), 3 * flops,
             [&] { gpu::DeltaGradient(stream, gradient); });
}

// The experts of one token, by the kernels of matrix-vector products, and of 4,096, by a product per expert.
void BenchExperts(KernelBench& bench) {
  const Stream stream = bench.stream;
  const MixtureSpec& mixture = bench.shape.mixture;
  if (mixture.experts == 0) return;
  const int64_t hidden = bench.shape.hidden, units = mixture.units, experts = mixture.experts, active = mixture.active,
                slots = kTokens * active;
  const auto w = RandomOnDevice<BFloat16>(stream, experts * 2 * units * hidden);
  const auto x = RandomOnDevice<float>(stream, kTokens * experts);
  const auto rows = RandomOnDevice<BFloat16>(stream, slots * hidden);
  const DeviceBuffer<float> y(stream, slots * std::max(hidden, 2 * units), kBench), weights(stream, slots, kBench),
      sum(stream, kTokens * hidden, kBench);
  std::vector<int32_t> all(experts);  // in turns, so that no cache has their matrices
  for (int64_t e = 0; e < experts; ++e) all[e] = static_cast<int32_t>(e);
  const DeviceBuffer<int32_t> order(stream, std::span<const int32_t>(all), kBench), chosen(stream, slots, kBench);
  int64_t at = 0;
  const auto next = [&](int64_t of_each_vector) {
    at = (at + active) % (experts - active + 1);
    return gpu::ExpertSlots{order.data() + at, active, of_each_vector};
  };
  const double bytes = AsDouble(2 * active * units * hidden);
  bench.Time("matvec", "gate, up and SwiGLU of experts, one token", 2 * bytes, 0, [&] {
    gpu::MatVecGatedOfExperts(stream, Activation::kSilu,
                              {.w = Array(w), .rows = 2 * units, .cols = hidden, .x = x.data(), .y = y.data()},
                              next(active), bench.multiprocessors);
  });
  bench.Time("matvec", "down of experts, one token", bytes, 0, [&] {
    gpu::MatVecOfExperts(stream, {.w = Array(w), .rows = hidden, .cols = units, .x = x.data(), .y = y.data()}, next(1),
                         bench.multiprocessors);
  });
  bench.Time("experts", "choice of experts, 4096 tokens", AsDouble(4 * kTokens * experts + 8 * slots), 0, [&] {
    gpu::ChooseExperts(stream, {x.data(), kTokens, experts}, active, true, chosen.data(), weights.data());
  });
  bench.Time("experts", "sum over experts, 4096 tokens", AsDouble(4 * (slots + kTokens) * hidden), 0, [&] {
    gpu::SumExperts(stream, {.rows = y.data(), .weights = weights.data(), .active = active}, false,
                    {sum.data(), kTokens, hidden});
  });
  gpu::Products products(stream);
  const int64_t each = std::max<int64_t>(1, slots / experts);
  bench.Time("cublaslt", "gate and up of all experts, 4096 tokens",
             AsDouble(2 * experts * (2 * units * hidden + each * (hidden + 2 * units))),
             AsDouble(2 * experts * each * 2 * units * hidden), [&] {
               for (int64_t e = 0; e < experts; ++e)
                 products.MatMul({.x = {rows.data() + e * each * hidden, DType::kBFloat16},
                                  .w = {w.data() + e * 2 * units * hidden, DType::kBFloat16},
                                  .y = {y.data() + e * each * units, DType::kBFloat16},
                                  .m = each,
                                  .n = 2 * units,
                                  .k = hidden});
             });
}

}  // namespace shiftrt
