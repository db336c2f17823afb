// SPDX-License-Identifier: Apache-2.0
// Autoregressive generation, for one sequence and for many together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "engine/sampling.h"
#include "include/shiftrt/generation.h"
#include "models/model.h"

namespace shiftrt {

struct GenerationResult {
  std::vector<int32_t> tokens;  // generated ones, without the stop token
  double prefill_seconds = 0;
  double decode_seconds = 0;  // the time of all steps after the first token
};

// The ids that end a reply: those of generation_config.json and config.json, and the tokenizer's EOS.
std::vector<int32_t> StopTokens(const Model& model);

// Moves the weights that every token of a reply reads to huge pages (runtime/host_memory.h), if a CPU reads them. It
// takes as long as some tens of tokens, and each token of a mapped model takes less time then. Weights that were moved
// before, or that are no part of a mapped file, stay. Blocks with experts stay
// where they are, because a token reads few of those.
void PrepareToGenerate(const Context& context, const Weights& weights, const DepthPlan& plan);

// Throws Error for a prompt of no tokens, and when prompt + max_tokens exceeds the model's context.
void CheckFits(int64_t prompt, int64_t max_tokens, const ModelConfig& config);

// The settings of a reply: one draw per token, from Random(seed). on_token is called with each token when it is chosen
// and returns false to stop.
struct GenerationRequest {
  int64_t max_tokens = 0;
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::span<const int32_t> stop;
  std::function<bool(int32_t)> on_token;
};

// Appends `tokens`, at least one, to `cache` and decodes until max_tokens or a token in `stop`. The cache then holds
// all of them but the last of the reply. Throws Error when the cache is full.
GenerationResult Continue(Decoder& decoder, KvCache& cache, std::span<const int32_t> tokens,
                          const GenerationRequest& request);

// The same for `prompt`, which must fit as CheckFits says, in a cache of its own.
GenerationResult Generate(Decoder& decoder, std::span<const int32_t> prompt, int64_t max_tokens,
                          const SamplingOptions& sampling, uint64_t seed, std::span<const int32_t> stop,
                          const std::function<bool(int32_t)>& on_token = {});

// The number of replies that are continued together: at most `most`, and as many as have caches of `positions` tokens
// in 4 GiB, but at least one.
int64_t RepliesTogether(const ModelConfig& config, const DepthPlan& plan, int64_t positions, int64_t most);

// The settings of the replies to many prompts. The draws of prompt i are those of Random(seed + i), so that its reply
// does not depend on the others beyond rounding.
struct ManyRequest {
  int64_t max_tokens = 0;
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::span<const int32_t> stop;
  int64_t batch = 1;  // sequences that are continued together, at most
  // Called with the index of a prompt and each token of its reply when it is chosen; returns false to end the reply.
  std::function<bool(size_t prompt, int32_t token)> on_token = {};
  // Called with the token in `stop` that ends a reply, before the reply is handed over.
  std::function<void(size_t prompt, int32_t token)> on_stop = {};
  // The numbers of the prompts, which count instead of their places: prompt i draws from Random(seed + numbers[i]).
  std::span<const int64_t> numbers = {};
  // Asked before each step. Once it returns true, the call ends, and replies in progress are dropped. May be empty.
  std::function<bool()> enough = {};
  // Asked before each prompt is begun. If it returns false, the call ends with the replies in progress. May be empty.
  std::function<bool()> more = {};
};
// Replies to every prompt as Generate() does, several at once: a reply that ends makes room for the next prompt, whose
// tokens are computed together with the next tokens of the other replies. Calls `on_reply` with the index of a prompt
// and its reply, without the stop token, in the order in which the replies end. Throws Error before any work for a
// prompt that does not fit.
GenerationTotals GenerateMany(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
                              const ManyRequest& request,
                              const std::function<void(size_t prompt, std::vector<int32_t> tokens)>& on_reply);

}  // namespace shiftrt
