// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/lra.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
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

// A projection over `m` tokens, bfloat16 weights (n, k).
void MatMulBench(benchmark::State& state, const Context& context, int64_t m, int64_t n, int64_t k) {
  const Matrix<float> x = RandomMatrix(m, k), y(m, n);
  Buffer<BFloat16> w(n * k);
  Random random(3);
  for (BFloat16& value : w.span()) value = BFloat16(static_cast<float>(random.Uniform() - 0.5));
  const TensorView weights{w.data(), DType::kBFloat16, {n, k}};
  for (auto _ : state) MatMul(context, x.view(), weights, {}, false, y.view());
  SetCounters(state, 2.0 * static_cast<double>(m * n * k), 2.0 * static_cast<double>(n * k));
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
    SwiGlu(context, work.view(), up.view());
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

void LraBench(benchmark::State& state, const Context& context, int64_t tokens) {
  const int64_t d = 1536, r = 64;
  const Matrix<float> p = RandomMatrix(d, r), q = RandomMatrix(r, d), b = RandomMatrix(1, d),
                      h = Matrix<float>::Zeros(tokens, d);
  for (auto _ : state) ApplyLowRankLra(context, p.view(), q.view(), b.view(), h.view());
  SetCounters(state, 4.0 * static_cast<double>(tokens * d * r), 4.0 * static_cast<double>(2 * d * r + d));
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

// For one site: lambda by gcv, the solve and the factorization.
void FitBench(benchmark::State& state, const Context& context, Factorization factorization) {
  const RidgeSums sums = RandomSums(context, 1536);
  for (auto _ : state)
    benchmark::DoNotOptimize(Factorize(context, sums, SolveRidge(context, sums, {}), /*rank=*/64, factorization));
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
  for (int64_t m : {1, 8, 128, 512})
    add("matmul/8960x1536/tokens:" + std::to_string(m),
        [=](benchmark::State& s) { MatMulBench(s, context, m, 8960, 1536); });
  for (int64_t m : {8, 512})
    add("matmul/1536x576/tokens:" + std::to_string(m),
        [=](benchmark::State& s) { MatMulBench(s, context, m, 1536, 576); });
  add("rmsnorm/512x1536", [=](benchmark::State& s) { RmsNormBench(s, context); });
  add("swiglu/512x8960", [=](benchmark::State& s) { SwiGluBench(s, context); });
  add("attention/prefill:512", [=](benchmark::State& s) { AttentionBench(s, context, 512, 0); });
  add("attention/decode:1024", [=](benchmark::State& s) { AttentionBench(s, context, 1, 1023); });
  for (int64_t tokens : {1, 512})
    add("lra/rank:64/tokens:" + std::to_string(tokens), [=](benchmark::State& s) { LraBench(s, context, tokens); });
  add("gram/1536/tokens:2048", [=](benchmark::State& s) { GramBench(s, context); });
  add("fit/1536/rank:64/svd", [=](benchmark::State& s) { FitBench(s, context, Factorization::kSvd); });
  add("fit/1536/rank:64/rrr", [=](benchmark::State& s) { FitBench(s, context, Factorization::kReducedRank); });
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace shiftrt
