// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <functional>
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

namespace {

// The perplexities of as many models as `sums_of` returns sums of the losses of a batch for.
std::vector<TextPerplexity> Windowed(const Context& context, size_t models,
                                     const std::function<std::vector<double>(const Batch&)>& sums_of,
                                     std::span<const int32_t> tokens, int64_t window, Progress& progress) {
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
    std::vector<double> sums = sums_of(batch);
    CountBatch(context, batch.size());
    return sums;
  };
  const auto sums = SharedLoop(context, batches, measure, [&](int64_t first, int64_t end) {
    progress.Advance(std::min(end * at_once, windows) - first * at_once);
  });
  progress.End();
  std::vector<TextPerplexity> results;
  for (size_t model = 0; model < models; ++model) {
    double nll = 0;
    for (const std::vector<double>& of_batch : sums) nll += of_batch.at(model);
    TextPerplexity& result = results.emplace_back();
    result.window = window;
    result.predicted = windows * (window - 1);
    result.mean_nll = nll / static_cast<double>(result.predicted);
    result.perplexity = std::exp(result.mean_nll);
    CheckIsFinite(result.mean_nll, "the negative log-likelihood is not finite");
  }
  return results;
}

double SumOfLosses(Decoder& decoder, const Batch& batch, const Rows& stream) {
  const std::vector<float> losses = TokenLosses(decoder, batch, stream);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

}  // namespace

TextPerplexity WindowedPerplexity(Decoder& decoder, std::span<const int32_t> tokens, int64_t window,
                                  Progress& progress) {
  const auto sums_of = [&](const Batch& batch) {
    return std::vector<double>{SumOfLosses(decoder, batch, decoder.Forward(batch))};
  };
  return Windowed(decoder.context(), 1, sums_of, tokens, window, progress).front();
}

std::vector<TextPerplexity> WindowedPerplexities(Trunk& trunk, std::span<const int32_t> tokens, int64_t window,
                                                 Progress& progress) {
  const auto sums_of = [&](const Batch& batch) {
    std::vector<double> sums;
    trunk.Begin(batch);
    for (size_t p = 0; p < trunk.plans(); ++p)
      sums.push_back(SumOfLosses(trunk.decoder(p), batch, trunk.Finish(batch, p)));
    return sums;
  };
  return Windowed(trunk.decoder(0).context(), trunk.plans(), sums_of, tokens, window, progress);
}

}  // namespace shiftrt
