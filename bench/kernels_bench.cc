// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gated_delta.h"
#include "kernels/logprob.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "runtime/json.h"
#include "runtime/random.h"
#include "shift/fit/factorize.h"

namespace shiftrt {

namespace {

using benchmark::Counter;

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed = 7) {
  Matrix<float> m(rows, cols);
  Random random(seed);
  for (float& x : m.span()) x = static_cast<float>(random.Uniform() - 0.5);
  return m;
}

void SetCounters(benchmark::State& state, double flops, double bytes) {
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["FLOP/s"] = Counter(flops, rate, Counter::kIs1000);
  state.counters["bytes/s"] = Counter(bytes, rate, Counter::kIs1000);
}

struct RandomWeights {
  RandomWeights(int64_t n, int64_t k) : values(n * k), view{values.data(), DType::kBFloat16, {n, k}} {
    Random random(3);
    for (BFloat16& value : values.span()) value = BFloat16(static_cast<float>(random.Uniform() - 0.5));
  }
  Buffer<BFloat16> values;
  TensorView view;
};

// A projection over `m` tokens, bfloat16 weights (n, k).
void MatMulBench(benchmark::State& state, const Context& context, int64_t m, int64_t n, int64_t k) {
  const Matrix<float> x = RandomMatrix(m, k), y(m, n);
  const RandomWeights w(n, k);
  for (auto _ : state) MatMul(context, x.view(), w.view, {}, false, y.view());
  SetCounters(state, 2.0 * static_cast<double>(m * n * k), 2.0 * static_cast<double>(n * k));
}

// The same with quantised weights. Bytes below 64 are scales that are finite.
void QuantisedMatMulBench(benchmark::State& state, const Context& context, DType type, int64_t m, int64_t n,
                          int64_t k) {
  const Matrix<float> x = RandomMatrix(m, k), y(m, n);
  const Buffer<std::byte> blocks(BytesOf(type, n * k));
  Random random(3);
  for (std::byte& byte : blocks.span()) byte = static_cast<std::byte>(random.Below(64));
  const TensorView w{blocks.data(), type, {n, k}};
  for (auto _ : state) MatMul(context, x.view(), w, {}, false, y.view());
  SetCounters(state, 2.0 * static_cast<double>(m * n * k), static_cast<double>(w.bytes()));
}

// The gated delta rule of Qwen3.5-0.8B: a sequence that begins, or one token that goes on from a state. A token takes 7
// FLOP per element of the states. The bytes are the rows of all tokens and, for one token, the states.
void GatedDeltaBench(benchmark::State& state, const Context& context, int64_t tokens) {
  const GatedDeltaShape shape{16, 16, 128, 128, 4};
  const Matrix<float> mixed = RandomMatrix(tokens, shape.channels()), a = RandomMatrix(tokens, shape.value_heads),
                      b = RandomMatrix(tokens, shape.value_heads), of_heads = RandomMatrix(1, shape.value_heads),
                      out(tokens, shape.values()), states = RandomMatrix(1, shape.state_floats());
  const TensorView heads{of_heads.data(), DType::kFloat32, {shape.value_heads}};
  DeltaSequence sequence{.count = tokens};
  if (tokens == 1) sequence.state_before = sequence.state_after = states.data();
  for (auto _ : state)
    GatedDelta(context, shape, {&sequence, 1}, {mixed.view(), a.view(), b.view(), heads, heads}, out.view());
  const auto elements = static_cast<double>(shape.state_floats());
  SetCounters(state, 7.0 * static_cast<double>(tokens) * elements,
              4.0 * static_cast<double>(mixed.size() + out.size()) + (tokens == 1 ? 8.0 * elements : 0.0));
}

void MatMulInputGradientBench(benchmark::State& state, const Context& context, int64_t m, int64_t n, int64_t k) {
  const Matrix<float> dy = RandomMatrix(m, n), dx(m, k);
  const RandomWeights w(n, k);
  for (auto _ : state) MatMulInputGradient(context, dy.view(), w.view, false, dx.view());
  SetCounters(state, 2.0 * static_cast<double>(m * n * k), 2.0 * static_cast<double>(n * k));
}

void MatMulWeightGradientBench(benchmark::State& state, const Context& context, int64_t m, int64_t n, int64_t k) {
  const Matrix<float> dy = RandomMatrix(m, n), x = RandomMatrix(m, k), dw = Matrix<float>::Zeros(n, k);
  for (auto _ : state) MatMulWeightGradient(context, dy.view(), x.view(), dw.view());
  SetCounters(state, 2.0 * static_cast<double>(m * n * k), 8.0 * static_cast<double>(n * k));
}

void RmsNormGradientBench(benchmark::State& state, const Context& context, int64_t tokens, int64_t n) {
  const Matrix<float> x = RandomMatrix(tokens, n), dy = RandomMatrix(tokens, n), weight = RandomMatrix(1, n),
                      dx(tokens, n), dweight = Matrix<float>::Zeros(1, n);
  const TensorView w{weight.data(), DType::kFloat32, {n}};
  for (auto _ : state) RmsNormGradient(context, {x.view(), w, 1e-6f}, dy.view(), false, dx.view(), dweight.view());
  SetCounters(state, 11.0 * static_cast<double>(x.size()), 12.0 * static_cast<double>(x.size()));
}

void RopeGradientBench(benchmark::State& state, const Context& context, int64_t tokens, int64_t width) {
  const Matrix<float> dx = RandomMatrix(tokens, width);
  const std::vector<int64_t> positions(tokens, 7);
  const std::vector<float> frequencies(32, 0.5f);
  const RopeAngles angles = MakeRopeAngles(context, positions, frequencies, 1);
  for (auto _ : state) RopeGradient(context, dx.view(), 64, angles);
  SetCounters(state, 3.0 * static_cast<double>(dx.size()), 8.0 * static_cast<double>(dx.size()));
}

void SwiGluGradientBench(benchmark::State& state, const Context& context, int64_t tokens, int64_t n) {
  const Matrix<float> gate = RandomMatrix(tokens, n), up = RandomMatrix(tokens, n), dgate(tokens, n), dup(tokens, n);
  for (auto _ : state) {
    state.PauseTiming();  // see SwiGluBench
    std::ranges::copy(gate.span(), dgate.data());
    state.ResumeTiming();
    GatedUnitGradient(context, Activation::kSilu, gate.view(), up.view(), dgate.view(), dup.view());
  }
  SetCounters(state, 11.0 * static_cast<double>(gate.size()), 20.0 * static_cast<double>(gate.size()));
}

// Attention of SmolLM2-135M (9 query heads, 3 key-value heads, head_dim 64), packed sequences of equal length.
void AttentionGradientBench(benchmark::State& state, const Context& context, int64_t tokens, int64_t length) {
  const int64_t heads = 9, kv_heads = 3, dim = 64;
  const Matrix<float> q = RandomMatrix(tokens, heads * dim), keys = RandomMatrix(tokens, kv_heads * dim),
                      values = RandomMatrix(tokens, kv_heads * dim), dout = RandomMatrix(tokens, heads * dim),
                      out(tokens, heads * dim), log_sums(tokens, heads), dq(tokens, heads * dim),
                      dk(tokens, kv_heads * dim), dv(tokens, kv_heads * dim);
  std::vector<int64_t> offsets;
  for (int64_t at = 0; at <= tokens; at += length) offsets.push_back(at);
  const PackedAttention attention{{heads, kv_heads, dim, 0.125f}, offsets, q.view(), keys.view(), values.view()};
  AttentionForGradient(context, attention, out.view(), log_sums.view());
  for (auto _ : state)
    AttentionGradient(context, attention, out.view(), log_sums.view(), dout.view(), {dq.view(), dk.view(), dv.view()});
  const double pairs = static_cast<double>(tokens) * 0.5 * static_cast<double>(length + 1);
  SetCounters(state, 10.0 * static_cast<double>(dim * heads) * pairs,
              4.0 * static_cast<double>(4 * q.size() + 4 * keys.size()));
}

// The head of SmolLM2-135M, with the gradient of its weights or without.
void HeadLossGradientBench(benchmark::State& state, const Context& context, int64_t tokens, bool weights) {
  const int64_t vocab = 49152, hidden = 576;
  const Matrix<float> x = RandomMatrix(tokens, hidden), dx(tokens, hidden),
                      dw = Matrix<float>::Zeros(weights ? vocab : 0, hidden);
  const RandomWeights w(vocab, hidden);
  const OutputHead head(w.view);
  const std::vector<int32_t> targets(tokens, 5);
  const std::vector<float> scales(tokens, 1.0f);
  std::vector<float> losses(tokens);
  for (auto _ : state)
    HeadLossGradient(context, x.view(), {head, targets}, scales, losses, dx.view(),
                     weights ? dw.view() : MatrixView<float>());
  // One product each for the logits, for dx and for dw.
  SetCounters(state, (weights ? 6.0 : 4.0) * static_cast<double>(tokens * hidden * vocab),
              2.0 * static_cast<double>(vocab * hidden));
}

void AdamWBench(benchmark::State& state, const Context& context, int64_t count) {
  const Matrix<float> gradient = RandomMatrix(1, count), values = RandomMatrix(1, count, 8),
                      first = Matrix<float>::Zeros(1, count), second = Matrix<float>::Zeros(1, count);
  AdamW settings{.rate = 1e-4f, .decay = 0.01f};
  for (auto _ : state) {
    AdamWStep(context, settings, gradient.span(), values.span(), first.span(), second.span());
    ++settings.step;
  }
  SetCounters(state, 14.0 * static_cast<double>(count), 28.0 * static_cast<double>(count));
}

void RmsNormBench(benchmark::State& state, const Context& context) {
  const Matrix<float> x = RandomMatrix(512, 1536), weight = RandomMatrix(1, 1536), out(512, 1536);
  const TensorView w{weight.data(), DType::kFloat32, {1536}};
  for (auto _ : state) RmsNorm(context, x.view(), w, 1e-6f, out.view());
  SetCounters(state, 4.0 * static_cast<double>(x.size()), 8.0 * static_cast<double>(x.size()));
}

void SwiGluBench(benchmark::State& state, const Context& context) {
  const Matrix<float> gate = RandomMatrix(512, 8960), up = RandomMatrix(512, 8960), work(512, 8960);
  for (auto _ : state) {
    state.PauseTiming();  // repeated on its own results, the numbers would become subnormal, which are slow
    std::ranges::copy(gate.span(), work.data());
    state.ResumeTiming();
    GatedUnit(context, Activation::kSilu, work.view(), up.view());
  }
  SetCounters(state, 5.0 * static_cast<double>(gate.size()), 12.0 * static_cast<double>(gate.size()));
}

// Attention of Qwen2-1.5B (12 query heads, 2 key-value heads, head_dim 128) for `queries` new tokens after `past`
// tokens.
void AttentionBench(benchmark::State& state, const Context& context, int64_t queries, int64_t past) {
  const int64_t width = 12 * 128L, kv_width = 2 * 128L;
  const AttentionShape shape{12, 2, 128, 0.0884f};
  const Matrix<float> q = RandomMatrix(queries, width), keys = RandomMatrix(past + queries, kv_width),
                      values = RandomMatrix(past + queries, kv_width), out(queries, width);
  const AttentionSequence sequence{0, queries, past, keys.view(), values.view()};
  for (auto _ : state) Attention(context, shape, std::span(&sequence, 1), q.view(), out.view());
  const double pairs =
      static_cast<double>(queries) * (static_cast<double>(past) + 0.5 * static_cast<double>(queries + 1));
  SetCounters(state, 4.0 * 128 * 12 * pairs, 8.0 * static_cast<double>(keys.size()));
}

// The sums of a site of width d whose update is a linear map of the inputs plus noise.
RidgeSums RandomSums(const Context& context, int64_t d) {
  const int64_t tokens = 2 * d;
  const Matrix<float> h = RandomMatrix(tokens, d), map = RandomMatrix(d, d, 8);
  Matrix<float> delta = RandomMatrix(tokens, d, 9);
  MatMulRight(context, h.view(), map.view(), /*accumulate=*/true, delta.view());
  RidgeSums sums(d);
  sums.Add(context, h.view(), delta.view());
  return sums;
}

void GramBench(benchmark::State& state, const Context& context) {
  const int64_t d = 1536, tokens = 2048;
  const Matrix<float> h = RandomMatrix(tokens, d), delta = RandomMatrix(tokens, d, 8);
  RidgeSums sums(d);
  for (auto _ : state) sums.Add(context, h.view(), delta.view());
  SetCounters(state, 3.0 * static_cast<double>(tokens * d * d), 8.0 * static_cast<double>(tokens * d));
}

// Times one site: lambda by gcv, the solve and the factorization.
void FitBench(benchmark::State& state, const Context& context, Factorization factorization) {
  const RidgeSums sums = RandomSums(context, 1536);
  for (auto _ : state)
    benchmark::DoNotOptimize(Factorize(context, sums, SolveRidge(context, sums, {}), /*rank=*/64, factorization));
}

// A list of `count` rows as data sets have them. The bytes per second must not depend on their number.
void JsonBench(benchmark::State& state, int64_t count) {
  std::string text = "[{}";
  for (int64_t i = 0; i < count; ++i)
    text += fmt::format(R"(,{{"instruction": "Name a number.", "input": "", "output": "{}"}})", i);
  text += "]";
  for (auto _ : state) benchmark::DoNotOptimize(ParseJson(text, "bench"));
  SetCounters(state, 0, static_cast<double>(text.size()));
}

}  // namespace

int BenchKernels(const Context& context, const std::vector<std::string>& arguments) {
  std::vector<std::string> owned = {"shiftrt bench kernels"};
  owned.insert(owned.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(owned.size());
  for (std::string& argument : owned) argv.push_back(argument.data());
  int argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  if (benchmark::ReportUnrecognizedArguments(argc, argv.data())) return 2;

  const auto add = [](const std::string& name, auto&& body) {
    benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  // The gate projections of Qwen2-1.5B and of SmolLM2-135M.
  for (int64_t m : {1, 8, 16, 128, 512})
    add("matmul/8960x1536/tokens:" + std::to_string(m),
        [=](benchmark::State& s) { MatMulBench(s, context, m, 8960, 1536); });
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                           DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS})
    for (int64_t m : {1, 8, 16, 24, 32, 512})
      add(fmt::format("matmul-{}/8960x1536/tokens:{}", Name(type), m),
          [=](benchmark::State& s) { QuantisedMatMulBench(s, context, type, m, 8960, 1536); });
  // Weights that no cache holds, as a model's.
  add("matmul/131072x1536/tokens:1", [=](benchmark::State& s) { MatMulBench(s, context, 1, 131072, 1536); });
  for (const DType type : {DType::kQ8_0, DType::kQ5_0, DType::kQ4_K, DType::kQ6_K})
    add(fmt::format("matmul-{}/131072x1536/tokens:1", Name(type)),
        [=](benchmark::State& s) { QuantisedMatMulBench(s, context, type, 1, 131072, 1536); });
  for (int64_t m : {8, 16, 32, 512, 2048})
    add("matmul/1536x576/tokens:" + std::to_string(m),
        [=](benchmark::State& s) { MatMulBench(s, context, m, 1536, 576); });
  add("rmsnorm/512x1536", [=](benchmark::State& s) { RmsNormBench(s, context); });
  add("swiglu/512x8960", [=](benchmark::State& s) { SwiGluBench(s, context); });
  add("attention/prefill:512", [=](benchmark::State& s) { AttentionBench(s, context, 512, 0); });
  for (const int64_t tokens : {1, 512})
    add(fmt::format("gated-delta/tokens:{}", tokens),
        [=](benchmark::State& s) { GatedDeltaBench(s, context, tokens); });
  add("attention/decode:1024", [=](benchmark::State& s) { AttentionBench(s, context, 1, 1023); });
  // Gradients of the projections of SmolLM2-135M.
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1536, 576}, {576, 1536}}) {
    const int64_t n = outputs, k = inputs;
    const std::string shape = fmt::format("/{}x{}/tokens:2048", n, k);
    if (n < k) add("matmul" + shape, [=](benchmark::State& s) { MatMulBench(s, context, 2048, n, k); });
    add("matmul-input-gradient" + shape,
        [=](benchmark::State& s) { MatMulInputGradientBench(s, context, 2048, n, k); });
    add("matmul-weight-gradient" + shape,
        [=](benchmark::State& s) { MatMulWeightGradientBench(s, context, 2048, n, k); });
  }
  for (int64_t length : {512, 2048})
    add("attention-gradient/tokens:2048/length:" + std::to_string(length),
        [=](benchmark::State& s) { AttentionGradientBench(s, context, 2048, length); });
  for (bool weights : {false, true})
    add(weights ? "head-loss-gradient/weights/tokens:1024" : "head-loss-gradient/tokens:1024",
        [=](benchmark::State& s) { HeadLossGradientBench(s, context, 1024, weights); });
  add("rmsnorm-gradient/2048x576", [=](benchmark::State& s) { RmsNormGradientBench(s, context, 2048, 576); });
  add("rope-gradient/2048x576", [=](benchmark::State& s) { RopeGradientBench(s, context, 2048, 576); });
  add("swiglu-gradient/2048x1536", [=](benchmark::State& s) { SwiGluGradientBench(s, context, 2048, 1536); });
  add("adamw/10000000", [=](benchmark::State& s) { AdamWBench(s, context, 10'000'000); });
  add("gram/1536/tokens:2048", [=](benchmark::State& s) { GramBench(s, context); });
  add("fit/1536/rank:64/svd", [=](benchmark::State& s) { FitBench(s, context, Factorization::kSvd); });
  add("fit/1536/rank:64/rrr", [=](benchmark::State& s) { FitBench(s, context, Factorization::kReducedRank); });
  for (int64_t count : {1'000, 10'000, 100'000, 1'000'000})
    add("json/objects:" + std::to_string(count), [=](benchmark::State& s) { JsonBench(s, count); });
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace shiftrt
