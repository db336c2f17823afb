// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/loss.h"
#include "runtime/check.h"
#include "runtime/not_finite.h"
#include "runtime/shared_items.h"

namespace shiftrt {

namespace {

// Tokens scored at once: enough rows to make the products efficient, few enough to bound the activations.
constexpr int64_t kBatchTokens = 1024;

}  // namespace

int64_t ProtocolWindow(std::string_view protocol, const ModelConfig& config) {
  if (protocol == "gptq") return std::min<int64_t>(2048, config.max_positions);
  if (protocol == "seq128") return std::min<int64_t>(128, config.max_positions);
  FailUsage(Field("protocol"), "unknown perplexity protocol \"{}\"; known: gptq, seq128", protocol);
}

int64_t WindowsPerBatch(int64_t window) { return std::max<int64_t>(1, kBatchTokens / window); }

std::vector<TextPerplexity> WindowedPerplexities(PlanTree& plans, std::span<const int32_t> tokens, int64_t window,
                                                 Progress& progress) {
  Check(window > 1 && tokens.size() > 1,
        "perplexity needs a text and a window of at least 2 tokens, and they have {} and {}", tokens.size(), window);
  window = std::min(window, std::ssize(tokens));
  const int64_t windows = std::ssize(tokens) / window;
  progress.Begin("perplexity", windows);
  const int64_t at_once = WindowsPerBatch(window), batches = (windows + at_once - 1) / at_once;
  const auto measure = [&](int64_t b) {
    Batch batch;
    for (int64_t w = b * at_once; w < std::min((b + 1) * at_once, windows); ++w)
      batch.Add(tokens.subspan(w * window, window));
    std::vector<double> sums(plans.plans());
    plans.Run(batch, [&](size_t plan, Decoder& decoder, const Rows& stream) {
      const std::vector<float> losses = TokenLosses(decoder, batch, stream);
      sums[plan] = std::accumulate(losses.begin(), losses.end(), 0.0);
    });
    CountBatch(plans.context(), batch.size());
    return sums;
  };
  const auto sums = SharedLoop(plans.context(), batches, measure, [&](int64_t first, int64_t end) {
    progress.Advance(std::min(end * at_once, windows) - first * at_once);
  });
  progress.End();
  std::vector<TextPerplexity> results;
  for (size_t plan = 0; plan < plans.plans(); ++plan) {
    double nll = 0;
    for (const std::vector<double>& of_batch : sums) nll += of_batch.at(plan);
    TextPerplexity& result = results.emplace_back();
    result.window = window;
    result.predicted = windows * (window - 1);
    result.mean_nll = nll / static_cast<double>(result.predicted);
    result.perplexity = std::exp(result.mean_nll);
    CheckIsFinite(result.mean_nll, "the negative log-likelihood is not finite");
  }
  return results;
}

}  // namespace shiftrt
