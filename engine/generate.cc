// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bounds the activations' memory on long prompts.
constexpr size_t kPrefillChunk = 512;

// A step that was started before the token it continues was known. The cache forgets it unless it is accepted.
struct Ahead {
  explicit Ahead(KvCache& cache) : cache(cache) {}
  ~Ahead() {
    if (started) cache.Truncate(cache.size() - 1);
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  bool Accept() { return std::exchange(started, false); }

  KvCache& cache;
  bool started = false;
};

}  // namespace

void CheckFits(int64_t prompt, int64_t max_tokens, const ModelConfig& config) {
  Check(prompt > 0, "the prompt is empty: give at least one token");
  Check(prompt + max_tokens <= config.max_positions,
        "a prompt of {} tokens and {} to generate exceed the model's context of {}; shorten one of them", prompt,
        max_tokens, config.max_positions);
}

GenerationResult Continue(Decoder& decoder, KvCache& cache, std::span<const int32_t> tokens,
                          const GenerationRequest& request) {
  GenerationResult result;
  if (request.max_tokens == 0) return result;
  Random random(request.seed);
  auto start = std::chrono::steady_clock::now();
  for (; tokens.size() > kPrefillChunk; tokens = tokens.subspan(kPrefillChunk)) {
    CheckInterrupted();
    decoder.Forward(tokens.first(kPrefillChunk), cache);
  }
  int32_t token = 0;
  double draw = random.Uniform();
  Ahead ahead(cache);
  for (std::span<const int32_t> next = tokens;; next = std::span(&token, 1)) {
    CheckInterrupted();
    if (!ahead.Accept()) decoder.StartToken(next, cache, request.sampling, draw);
    draw = random.Uniform();
    // A stop ends the reply after a step in vain; the last token of all is known to be the last.
    if (std::ssize(result.tokens) + 1 < request.max_tokens)
      ahead.started = decoder.StartNext(cache, request.sampling, draw);
    token = decoder.TakeToken();
    if (result.prefill_seconds == 0) {
      result.prefill_seconds = SecondsSince(start);
      start = std::chrono::steady_clock::now();
    }
    if (std::find(request.stop.begin(), request.stop.end(), token) != request.stop.end()) break;
    result.tokens.push_back(token);
    const bool more = !request.on_token || request.on_token(token);
    if (!more || static_cast<int64_t>(result.tokens.size()) == request.max_tokens) break;
  }
  result.decode_seconds = SecondsSince(start);
  return result;
}

GenerationResult Generate(Decoder& decoder, std::span<const int32_t> prompt, int64_t max_tokens,
                          const SamplingOptions& sampling, uint64_t seed, std::span<const int32_t> stop,
                          const std::function<bool(int32_t)>& on_token) {
  const auto length = static_cast<int64_t>(prompt.size());
  CheckFits(length, max_tokens, decoder.config());
  if (max_tokens == 0) return {};
  KvCache cache(decoder.config(), decoder.plan(), length + max_tokens);
  return Continue(decoder, cache, prompt, {max_tokens, sampling, seed, stop, on_token});
}

}  // namespace shiftrt
