// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <span>

#include "bench/energy.h"
#include "bench/gpu_bench.h"
#include "estimate/flops.h"
#include "runtime/check.h"
#include "runtime/median.h"
#include "runtime/random.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;

std::shared_ptr<const Lra> RandomAdapter(int64_t hidden, int64_t rank, uint64_t seed) {
  Random random(seed);
  const auto fill = [&](int64_t rows, int64_t cols) {
    Matrix<float> m(rows, cols);
    for (float& x : m.span()) x = static_cast<float>(1e-3 * random.Normal());
    return m;
  };
  return std::make_shared<const Lra>(Lra{{}, fill(hidden, rank), fill(rank, hidden), fill(1, hidden)});
}

// A quarter of the blocks, from the middle on, which is what selection tends to choose.
std::vector<int64_t> QuarterOf(int64_t layers) {
  std::vector<int64_t> removed;
  for (int64_t i = 0; i < layers / 4; ++i) removed.push_back(layers / 2 + i);
  return removed;
}

// One plan with the decoder and cache to time it.
struct Runner {
  Runner(const Context& context, const std::shared_ptr<const Weights>& weights, const char* name, DepthPlan plan,
         int64_t positions)
      : name(name), decoder(context, weights, std::move(plan)), cache(weights->config, decoder.plan(), positions) {}

  const char* name;
  Decoder decoder;
  KvCache cache;
  std::vector<double> tokens_per_second;
  double joules = 0;  // energy of all rounds that count

  struct Decoded {
    double tokens_per_second, joules;
  };
  // `count` tokens that follow `context`. The first three tokens, of which two record the launches, do not count.
  Decoded Decode(std::span<const int32_t> context, int64_t count, const EnergyMeter& meter) {
    cache.Truncate(0);
    decoder.StartToken(context, cache, {}, 0);
    const auto next = [&] {  // as in generation: a step is started before the token it continues is known
      Check(decoder.StartNext(cache, {}, 0), "the cache of {} positions is full", cache.capacity());
      decoder.TakeToken();
    };
    for (int i = 0; i < 2; ++i) next();
    // The device computes a token while the driver reads the energy, so that the time begins a token later.
    const double before = meter.Joules();
    next();
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) next();
    const double seconds = SecondsSince(start);
    const double share = static_cast<double>(count) / static_cast<double>(count + 1);
    return {static_cast<double>(count) / seconds, share * (meter.Joules() - before)};
  }
  double Prefill(std::span<const int32_t> prompt) {
    cache.Truncate(0);
    const auto start = Clock::now();
    decoder.NextToken(prompt, cache, {}, 0);
    return static_cast<double>(prompt.size()) / SecondsSince(start);
  }
};

// Tokens per second of all sequences together, each of which appends `count` tokens to `context` and some that do not
// count, as in Decode().
double DecodeTogether(Decoder& decoder, std::span<const int32_t> context, int64_t sequences, int64_t count) {
  constexpr int64_t kUncounted = 3;
  std::vector<KvCache> caches;
  caches.reserve(static_cast<size_t>(sequences));
  for (int64_t s = 0; s < sequences; ++s) {
    caches.emplace_back(decoder.config(), decoder.plan(), std::ssize(context) + count + kUncounted);
    decoder.Forward(context, caches.back());
  }
  std::vector<int32_t> tokens(caches.size(), context.back());
  Clock::time_point start;
  for (int64_t i = 0; i < count + kUncounted; ++i) {
    if (i == kUncounted) start = Clock::now();
    std::vector<CachedTokens> step;
    for (size_t s = 0; s < caches.size(); ++s)
      step.push_back({std::span(tokens).subspan(s, 1), &caches[s], CachedTokens::Choice()});
    tokens = decoder.NextTokens(step);
  }
  return static_cast<double>(sequences * count) / SecondsSince(start);
}

std::vector<Runner> MakeRunners(const Context& context, const std::shared_ptr<const Weights>& weights,
                                const ModelBenchOptions& options) {
  const int64_t layers = weights->config.layers, hidden = weights->config.hidden;
  const std::vector<int64_t> removed = QuarterOf(layers);
  std::vector<std::shared_ptr<const Lra>> each, merged(removed.size());
  for (size_t i = 0; i < removed.size(); ++i) each.push_back(RandomAdapter(hidden, 64, i));
  if (!removed.empty()) merged[0] = each[0];
  const int64_t positions = std::max(options.prefill, options.context + options.decode + 3);
  std::vector<Runner> runners;
  runners.emplace_back(context, weights, "original", DepthPlan::Original(layers), positions);
  runners.emplace_back(context, weights, "pruned", DepthPlan::Pruned(layers, removed), positions);
  runners.emplace_back(context, weights, "pruned + LRA 64", DepthPlan::Corrected(layers, removed, each), positions);
  runners.emplace_back(context, weights, "pruned + merged LRA 64", DepthPlan::Corrected(layers, removed, merged),
                       positions);
  return runners;
}

}  // namespace

GpuModelBench BenchGpuModel(const Context& context, std::shared_ptr<const Weights> weights, const GpuLimits& limits,
                            const ModelBenchOptions& options, Progress& progress) {
  Random random(1);
  std::vector<int32_t> tokens(std::max(options.prefill, options.context));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(weights->config.vocab));
  const std::span<const int32_t> all(tokens);
  std::vector<Runner> runners = MakeRunners(context, weights, options);
  std::vector<double> prefill;
  constexpr int64_t kTogether[] = {1, 4, 16};
  std::vector<double> together[std::size(kTogether)];
  const EnergyMeter meter(gpu::QueryDevice(context.gpus.front()).pci_bus_id);
  progress.Begin("measuring decoders", options.rounds + 1);
  for (int64_t round = 0; round < options.rounds + 1; ++round) {  // the first round is a warm-up
    const double prefilled = runners[0].Prefill(all.first(options.prefill));
    if (round > 0) prefill.push_back(prefilled);
    for (Runner& runner : runners) {
      const auto [speed, joules] = runner.Decode(all.first(options.context), options.decode, meter);
      if (round == 0) continue;
      runner.tokens_per_second.push_back(speed);
      runner.joules += joules;
    }
    for (size_t i = 0; i < std::size(kTogether); ++i) {
      const double speed = DecodeTogether(runners[0].decoder, all.first(options.context), kTogether[i], options.decode);
      if (round > 0) together[i].push_back(speed);
    }
    progress.Advance(1);
  }
  progress.End();
  GpuModelBench result;
  for (size_t i = 0; i < std::size(kTogether); ++i)
    result.together.push_back({kTogether[i], Median(together[i]),
                               static_cast<double>(kTogether[i]) * limits.copy_bandwidth /
                                   static_cast<double>(runners[0].decoder.BytesPerToken())});
  result.prefill_tokens_per_second = Median(prefill);
  result.prefill_floor = limits.matrix_peak / BlockFlopsPerToken(*weights);
  for (const Runner& runner : runners)
    result.variants.push_back({runner.name, Median(runner.tokens_per_second),
                               limits.copy_bandwidth / static_cast<double>(runner.decoder.BytesPerToken()),
                               runner.joules / static_cast<double>(options.rounds * options.decode)});
  return result;
}

}  // namespace shiftrt
