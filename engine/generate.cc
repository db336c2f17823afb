// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <utility>

#include "engine/activations.h"
#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/host_memory.h"
#include "runtime/random.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

// Bounds the activations' memory on long prompts.
constexpr size_t kPrefillChunk = 512;

// Tokens of prompts that are computed in one step, together with the next tokens of all replies.
constexpr int64_t kPromptTokensOfAStep = 2048;

// The caches of the replies that are generated together take at most this memory, unless one alone takes more.
constexpr int64_t kCacheBytes = int64_t{4} << 30;

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

// A reply in progress.
struct Reply {
  size_t prompt = 0;
  KvCache cache;
  Random random;
  std::span<const int32_t> left;  // the rest of the prompt
  std::vector<int32_t> tokens = {};

  // The tokens that the next step appends.
  std::span<const int32_t> Next(size_t most) const {
    return left.empty() ? std::span(tokens).last(1) : left.first(std::min(left.size(), most));
  }
};

bool Has(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// Throws Error for a token that does not exist.
void CheckTokens(std::span<const int32_t> tokens, const ModelConfig& config) {
  for (const int32_t token : tokens)
    Check(token >= 0 && token < config.vocab, "token {} is outside the vocabulary of {}", token, config.vocab);
}

}  // namespace

std::vector<int32_t> StopTokens(const Model& model) {
  std::vector<int32_t> stop = model.weights->config.eos_tokens;
  if (model.tokenizer && model.tokenizer->eos_token() >= 0) stop.push_back(model.tokenizer->eos_token());
  return stop;
}

void PrepareToGenerate(const Context& context, const Weights& weights, const DepthPlan& plan) {
  if (context.device != Device::kCpu || weights.split()) return;
  std::vector<std::span<const std::byte>> ranges;
  const auto add = [&](const TensorView& tensor) {
    const std::span<const std::byte> bytes = weights.mapped->Take(tensor);
    if (!bytes.empty()) ranges.push_back(bytes);
  };
  const auto add_block = [&](const BlockStage& stage) {
    const BlockWeights& block = weights.blocks[stage.layer];
    if (!block.IsMixture())
      ForEachTensor(block, stage.halves, [&](const BlockTensor&, const TensorView& tensor) { add(tensor); });
  };
  for (const Stage& stage : plan.stages) stage.Visit(add_block, [](const AdapterStage&) {});
  add(weights.head);
  MoveToHugePages(context, std::move(ranges));
}

void CheckFits(int64_t prompt, int64_t max_tokens, const ModelConfig& config) {
  Check(prompt > 0, "the prompt is empty: give at least one token");
  Check(max_tokens <= config.max_positions - prompt,
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
    if (Has(request.stop, token)) break;
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

int64_t RepliesTogether(const ModelConfig& config, const DepthPlan& plan, int64_t positions, int64_t most) {
  const int64_t bytes = positions * KvBytesPerPosition(config, plan, DType::kFloat32) + StateBytes(config, plan);
  return std::clamp(kCacheBytes / std::max<int64_t>(bytes, 1), int64_t{1}, most);
}

GenerationTotals GenerateMany(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
                              const ManyRequest& request,
                              const std::function<void(size_t, std::vector<int32_t>)>& on_reply) {
  Check(request.batch > 0, "a batch of {} sequences, expected one at least", request.batch);
  for (const std::vector<int32_t>& prompt : prompts) {
    CheckFits(std::ssize(prompt), request.max_tokens, decoder.config());
    CheckTokens(prompt, decoder.config());
  }
  const auto start = std::chrono::steady_clock::now();
  GenerationTotals counts;
  if (request.max_tokens == 0) {
    for (size_t i = 0; i < prompts.size(); ++i) on_reply(i, {});
    return counts;
  }
  std::list<Reply> replies;
  size_t begun = 0;
  while (begun < prompts.size() || !replies.empty()) {
    CheckInterrupted();
    if (request.enough && request.enough()) break;
    for (; begun < prompts.size() && std::ssize(replies) < request.batch; ++begun) {
      if (request.more && !request.more()) break;
      const std::vector<int32_t>& prompt = prompts[begun];
      const int64_t capacity = std::ssize(prompt) + request.max_tokens;
      const uint64_t number = request.numbers.empty() ? begun : static_cast<uint64_t>(request.numbers[begun]);
      replies.push_back({begun, KvCache(decoder.config(), decoder.plan(), capacity), Random(request.seed + number),
                         std::span(prompt)});
    }
    if (replies.empty()) break;
    std::vector<CachedTokens> step;
    int64_t room = kPromptTokensOfAStep;
    for (Reply& reply : replies) {
      const std::span<const int32_t> next = reply.Next(static_cast<size_t>(1 + room));
      room -= std::ssize(next) - 1;
      CachedTokens one{next, &reply.cache};
      if (next.size() >= reply.left.size()) one.choice = {request.sampling, reply.random.Uniform()};
      step.push_back(one);
    }
    const std::vector<int32_t> chosen = decoder.NextTokens(step);
    auto reply = replies.begin();
    for (size_t i = 0; i < step.size(); ++i) {
      const auto at = reply++;
      if (!at->left.empty()) {
        counts.prompt_tokens += std::ssize(step[i].tokens);
        at->left = at->left.subspan(step[i].tokens.size());
      }
      if (!step[i].choice) continue;
      bool more = !Has(request.stop, chosen[i]);
      if (more) {
        at->tokens.push_back(chosen[i]);
        ++counts.tokens;
        more = !request.on_token || request.on_token(at->prompt, chosen[i]);
      } else if (request.on_stop) {
        request.on_stop(at->prompt, chosen[i]);
      }
      if (more && std::ssize(at->tokens) < request.max_tokens) continue;
      on_reply(at->prompt, std::move(at->tokens));
      replies.erase(at);
    }
  }
  counts.seconds = SecondsSince(start);
  return counts;
}

}  // namespace shiftrt
