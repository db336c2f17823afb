#include "models/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bounds the activations' memory on long prompts.
constexpr int64_t kPrefillChunk = 512;

}  // namespace

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, Random& random) {
  for (float logit : logits) Check(!std::isnan(logit), "a logit is NaN: the weights or an adapter hold bad values");
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature <= 0) return best;

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) order.resize(options.top_k);

  std::vector<double> weight(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    weight[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[best]) / options.temperature);
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double nucleus = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || nucleus < options.top_p * total)) nucleus += weight[kept++];

  double draw = random.Uniform() * nucleus;
  for (size_t i = 0; i + 1 < kept; ++i)
    if ((draw -= weight[i]) < 0) return order[i];
  return order[kept - 1];
}

void CheckFits(int64_t prompt, int64_t max_tokens, const ModelConfig& config) {
  Check(prompt > 0, "the prompt is empty: give at least one token");
  Check(prompt + max_tokens <= config.max_positions,
        "a prompt of {} tokens and {} to generate exceed the model's context of {}; shorten one of them", prompt,
        max_tokens, config.max_positions);
}

GenerationResult Generate(Decoder& decoder, std::span<const int32_t> prompt, int64_t max_tokens,
                          const SamplingOptions& sampling, uint64_t seed, std::span<const int32_t> stop,
                          const std::function<bool(int32_t)>& on_token) {
  const auto length = static_cast<int64_t>(prompt.size());
  CheckFits(length, max_tokens, decoder.config());
  GenerationResult result;
  if (max_tokens == 0) return result;
  KvCache cache(decoder.config(), decoder.plan(), length + max_tokens);
  Random random(seed);
  auto start = std::chrono::steady_clock::now();
  MatrixView<const float> h;
  for (int64_t begin = 0; begin < length; begin += kPrefillChunk) {
    CheckInterrupted();
    h = decoder.Forward(prompt.subspan(begin, std::min(kPrefillChunk, length - begin)), cache);
  }
  while (true) {
    const Matrix<float> logits = decoder.Logits(h.Rows(h.rows - 1, 1));
    const int32_t token = SampleToken(logits.span(), sampling, random);
    if (result.prefill_seconds == 0) {
      result.prefill_seconds = SecondsSince(start);
      start = std::chrono::steady_clock::now();
    }
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) break;
    result.tokens.push_back(token);
    const bool more = !on_token || on_token(token);
    if (!more || static_cast<int64_t>(result.tokens.size()) == max_tokens) break;
    CheckInterrupted();
    h = decoder.Forward(std::span(&token, 1), cache);
  }
  result.decode_seconds = SecondsSince(start);
  return result;
}

}  // namespace shiftrt
