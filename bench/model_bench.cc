// SPDX-License-Identifier: Apache-2.0
#include "bench/model_bench.h"

#include <algorithm>
#include <chrono>

#include "bench/probe.h"
#include "estimate/flops.h"
#include "runtime/check.h"
#include "runtime/median.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab, Random& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab));
  return tokens;
}

}  // namespace

ModelBenchResult BenchModel(const Context& context, const std::shared_ptr<const Weights>& weights,
                            const ModelBenchOptions& options, Progress& progress) {
  const ModelConfig& config = weights->config;
  Check(std::max(options.prefill, options.context + options.decode) <= config.max_positions,
        "the benchmark needs {} positions; the model's context is {}",
        std::max(options.prefill, options.context + options.decode), config.max_positions);
  Decoder decoder(context, weights, DepthPlan::Original(config.layers));
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
  KvCache prefill_cache(config, decoder.plan(), options.prefill);
  decoder.Forward(prompt, prefill_cache);  // warm-up: the first pass loads the pages of weights and scratch
  decoder.Forward(past, decode_cache);
  decoder.Logits(decoder.Forward(std::span(next).first(1), decode_cache));  // loads the pages of the head too
  step_together(0);

  ModelBenchResult result;
  result.bytes_per_token = decoder.BytesPerToken();
  result.flops_per_token = BlockFlopsPerToken(*weights);
  const DType stored = weights->blocks.front().down.dtype;
  const double flops_with_head =
      result.flops_per_token + 2 * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
  std::vector<double> bandwidth, peak, products, prefill, prefill_share, decode, decode_share, together, together_floor,
      together_share;
  progress.Begin("measuring", options.rounds);
  for (int64_t round = 0; round < options.rounds; ++round) {
    bandwidth.push_back(MeasureReadBandwidth(context));
    peak.push_back(MeasureFloat32Peak(context));
    products.push_back(MeasureProductPeak(context, stored));

    decode_cache.Truncate(options.context);
    auto start = Clock::now();
    for (int64_t i = 0; i < options.decode; ++i)
      decoder.Logits(decoder.Forward(std::span(next).subspan(i, 1), decode_cache));
    decode.push_back(static_cast<double>(options.decode) / SecondsSince(start));
    decode_share.push_back(decode.back() * static_cast<double>(result.bytes_per_token) / bandwidth.back());

    for (KvCache& cache : caches) cache.Truncate(options.context);
    start = Clock::now();
    for (int64_t i = 0; i < options.decode; ++i) step_together(i);
    const auto sequences = static_cast<double>(options.sequences);
    together.push_back(sequences * static_cast<double>(options.decode) / SecondsSince(start));
    together_floor.push_back(sequences / std::max(static_cast<double>(result.bytes_per_token) / bandwidth.back(),
                                                  sequences * flops_with_head / products.back()));
    together_share.push_back(together.back() / together_floor.back());

    prefill_cache.Truncate(0);
    start = Clock::now();
    decoder.Logits(decoder.Forward(prompt, prefill_cache).Slice(options.prefill - 1, 1));
    prefill.push_back(static_cast<double>(options.prefill) / SecondsSince(start));
    prefill_share.push_back(prefill.back() * result.flops_per_token / products.back());
    progress.Advance(1);
  }
  progress.End();
  result.read_bandwidth = Median(bandwidth);
  result.prefill_tokens_per_second = Median(prefill);
  result.float32_peak = Median(peak);
  result.product_peak = Median(products);
  result.prefill_floor = result.product_peak / result.flops_per_token;
  result.prefill_share_of_peak = Median(prefill_share);
  result.decode_tokens_per_second = Median(decode);
  result.decode_floor = result.read_bandwidth / static_cast<double>(result.bytes_per_token);
  result.decode_share_of_bandwidth = Median(decode_share);
  result.together_tokens_per_second = Median(together);
  result.together_floor = Median(together_floor);
  result.together_share_of_floor = Median(together_share);
  return result;
}

}  // namespace shiftrt
