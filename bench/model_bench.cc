// SPDX-License-Identifier: Apache-2.0
#include "bench/model_bench.h"

#include <algorithm>
#include <chrono>

#include "bench/probe.h"
#include "engine/generate.h"
#include "estimate/flops.h"
#include "runtime/check.h"
#include "runtime/median.h"
#include "runtime/random.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab, Random& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab));
  return tokens;
}

}  // namespace

std::vector<BenchFigure> ModelBenchResult::figures() const {
  return {read_bandwidth, float32_peak, product_peak, prefill,       prefill_share,
          decode,         decode_share, together,     together_share};
}

ModelBenchResult BenchModel(const Context& context, const std::shared_ptr<const Weights>& weights,
                            const ModelBenchOptions& options, Progress& progress) {
  const ModelConfig& config = weights->config;
  Check(std::max(options.prefill, options.context + options.decode) <= config.max_positions,
        "the benchmark needs {} positions; the model's context is {}",
        std::max(options.prefill, options.context + options.decode), config.max_positions);
  Decoder decoder(context, weights, DepthPlan::Original(config.layers));
  PrepareToGenerate(context, *weights, decoder.plan());
  Random random(1);
  const std::vector<int32_t> prompt = RandomTokens(options.prefill, config.vocab, random);
  const std::vector<int32_t> past = RandomTokens(options.context, config.vocab, random);
  const std::vector<int32_t> next = RandomTokens(options.decode, config.vocab, random);

  KvCache decode_cache(config, decoder.plan(), options.context + options.decode);
  std::vector<KvCache> caches;
  caches.reserve(static_cast<size_t>(options.sequences));
  for (int64_t s = 0; s < options.sequences; ++s) {
    caches.emplace_back(config, decoder.plan(), options.context + options.decode);
    decoder.Forward(past, caches.back());
  }
  // Appends a token to every sequence and chooses the next.
  const auto step_together = [&](int64_t i) {
    std::vector<CachedTokens> step;
    step.reserve(caches.size());
    for (KvCache& cache : caches) step.push_back({std::span(next).subspan(i, 1), &cache, CachedTokens::Choice()});
    decoder.NextTokens(step);
  };
  // Takes the sequence back to the context, from its beginning where its cache cannot go back.
  const auto rewind = [&](KvCache& cache) {
    if (cache.Truncate(options.context) < options.context) decoder.Forward(past, cache);
  };
  KvCache prefill_cache(config, decoder.plan(), options.prefill);
  decoder.Forward(prompt, prefill_cache);  // warm-up: the first pass loads the pages of weights and scratch
  decoder.Forward(past, decode_cache);
  decoder.Logits(decoder.Forward(std::span(next).first(1), decode_cache));  // loads the pages of the head too
  step_together(0);

  ModelBenchResult r;
  r.bytes_per_token = decoder.BytesPerToken();
  r.flops_per_token = BlockFlopsPerToken(*weights);
  const DType stored = weights->blocks.front().AnyDown().dtype;
  const double flops_with_head =
      r.flops_per_token + 2 * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
  std::vector<double> together_floor;
  progress.Begin("measuring", options.rounds);
  for (int64_t round = 0; round < options.rounds; ++round) {
    r.read_bandwidth.rounds.push_back(MeasureReadBandwidth(context));
    r.float32_peak.rounds.push_back(MeasureFloat32Peak(context));
    r.product_peak.rounds.push_back(MeasureProductPeak(context, stored));
    const double bandwidth = r.read_bandwidth.rounds.back(), products = r.product_peak.rounds.back();

    rewind(decode_cache);
    auto start = Clock::now();
    for (int64_t i = 0; i < options.decode; ++i)
      decoder.Logits(decoder.Forward(std::span(next).subspan(i, 1), decode_cache));
    r.decode.rounds.push_back(static_cast<double>(options.decode) / SecondsSince(start));
    r.decode_share.rounds.push_back(r.decode.rounds.back() * static_cast<double>(r.bytes_per_token) / bandwidth);

    for (KvCache& cache : caches) rewind(cache);
    start = Clock::now();
    for (int64_t i = 0; i < options.decode; ++i) step_together(i);
    const auto sequences = static_cast<double>(options.sequences);
    r.together.rounds.push_back(sequences * static_cast<double>(options.decode) / SecondsSince(start));
    together_floor.push_back(sequences / std::max(static_cast<double>(r.bytes_per_token) / bandwidth,
                                                  sequences * flops_with_head / products));
    r.together_share.rounds.push_back(r.together.rounds.back() / together_floor.back());

    prefill_cache.Truncate(0);
    start = Clock::now();
    decoder.Logits(decoder.Forward(prompt, prefill_cache).Slice(options.prefill - 1, 1));
    r.prefill.rounds.push_back(static_cast<double>(options.prefill) / SecondsSince(start));
    r.prefill_share.rounds.push_back(r.prefill.rounds.back() * r.flops_per_token / products);
    progress.Advance(1);
  }
  progress.End();
  r.prefill_floor = r.product_peak.median() / r.flops_per_token;
  r.decode_floor = r.read_bandwidth.median() / static_cast<double>(r.bytes_per_token);
  r.together_floor = Median(together_floor);
  return r;
}

}  // namespace shiftrt
