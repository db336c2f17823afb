// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/runner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "api/impl.h"
#include "engine/generate.h"
#include "runtime/check.h"

namespace shiftrt {

struct SequenceCache::Impl {
  KvCache cache;
};

SequenceCache::SequenceCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SequenceCache::SequenceCache(SequenceCache&&) noexcept = default;
SequenceCache& SequenceCache::operator=(SequenceCache&&) noexcept = default;
SequenceCache::~SequenceCache() = default;
int64_t SequenceCache::Size() const { return impl_->cache.size(); }
int64_t SequenceCache::Capacity() const { return impl_->cache.capacity(); }
void SequenceCache::Truncate(int64_t size) {
  Check(size >= 0 && size <= Size(), "a sequence of {} tokens cannot be cut to {}", Size(), size);
  Check(size == 0 || size == Size() || !impl_->cache.recurrent(),
        "a sequence of {} tokens cannot be cut to {}: a recurrent block has no earlier state; cut it to 0", Size(),
        size);
  impl_->cache.Truncate(size);
}

struct ModelRunner::Impl {
  static constexpr int64_t kManyTokens = 128;

  Impl(const LanguageModel& model, const Resources& resources)
      : model(model), context(MakeContext(resources)), decoder(MakeDecoder()) {}
  Decoder MakeDecoder() const {
    const auto turn = context.TakeTurn();
    return {context, model.impl().model.weights, model.impl().model.plan};
  }
  // Called before so many tokens are generated, at most. Once many are expected, they pay for the preparation.
  void Expect(int64_t tokens) {
    const int64_t before = std::exchange(expected, std::min(expected + std::min(tokens, kManyTokens), kManyTokens));
    if (before < kManyTokens && expected == kManyTokens)
      PrepareToGenerate(context, *model.impl().model.weights, model.impl().model.plan);
  }
  // Runs a sequence, and reports the rows at this point of these layers.
  void Listen(std::span<const int32_t> tokens, const std::vector<int64_t>& layers, TapPoint point,
              const std::function<void(int64_t, std::span<const float>)>& receive) const;

  LanguageModel model;
  Context context;
  Decoder decoder;
  int64_t expected = 0;
};

ModelRunner::ModelRunner(const LanguageModel& model, const Resources& resources)
    : impl_(std::make_unique<Impl>(model, resources)) {}
ModelRunner::ModelRunner(ModelRunner&&) noexcept = default;
ModelRunner& ModelRunner::operator=(ModelRunner&&) noexcept = default;
ModelRunner::~ModelRunner() = default;

namespace {

// Hands generated tokens to a caller, as ids and as text.
class Listener {
 public:
  Listener(const Tokenizer& tokenizer, const GenerationSettings& settings, const std::function<bool(int32_t)>& on_token)
      : tokenizer_(tokenizer), settings_(settings), on_token_(on_token), text_(tokenizer) {}

  // Text that is already there, so that what follows keeps its space.
  void Follow(std::span<const int32_t> tokens) {
    if (settings_.on_text)
      for (const int32_t token : tokens) text_.Push(token);
  }
  bool operator()(int32_t token) {
    CheckInterrupted();
    // Ids of a vocabulary that is padded beyond the tokenizer's stand for no text.
    if (settings_.on_text && token < tokenizer_.vocab_size()) Say(text_.Push(token));
    return !on_token_ || on_token_(token);
  }
  void Finish() {
    if (settings_.on_text) Say(text_.Finish());
  }

 private:
  void Say(const std::string& text) {
    if (!text.empty()) settings_.on_text(text);
  }

  const Tokenizer& tokenizer_;
  const GenerationSettings& settings_;
  const std::function<bool(int32_t)>& on_token_;
  StreamingDecoder text_;
};

std::vector<int32_t> Spelled(std::vector<int32_t> tokens, const Tokenizer& tokenizer) {
  std::erase_if(tokens, [&](int32_t token) { return token >= tokenizer.vocab_size(); });
  return tokens;
}

// Throws UsageError for settings that include/shiftrt/runner.h does not allow. The comparisons refuse NaN, too.
SamplingOptions SamplingOf(const GenerationSettings& settings) {
  if (settings.max_tokens < 1) FailUsage(Field("max_tokens"), "{}; at least one is generated", settings.max_tokens);
  if (!(settings.temperature >= 0) || std::isinf(settings.temperature))
    FailUsage(Field("temperature"), "{} is not a finite number from 0 on", settings.temperature);
  if (!(settings.top_p >= 0 && settings.top_p <= 1))
    FailUsage(Field("top_p"), "{} is not between 0 and 1", settings.top_p);
  if (settings.top_k < 0) FailUsage(Field("top_k"), "{}; 0 is among all tokens", settings.top_k);
  return {settings.temperature, settings.top_p, settings.top_k};
}

}  // namespace

std::unique_ptr<ChatTemplate> RequireChatTemplate(const Model& model) {
  std::unique_ptr<ChatTemplate> found = LoadChatTemplate(model.directory, model.RequireTokenizer());
  Check(
      found != nullptr,
      "{}: --chat needs a chat template, and there is none (looked at chat_template.jinja, chat_template in "
      "tokenizer_config.json and chat_template.json, or tokenizer.chat_template of a GGUF file); base models have none",
      model.directory.string());
  return found;
}

Generation ModelRunner::Generate(std::string_view prompt, const GenerationSettings& settings,
                                 const std::function<bool(int32_t)>& on_token) {
  return Generate(impl_->model.Encode(prompt), settings, on_token);
}

Generation ModelRunner::Generate(std::span<const int32_t> prompt, const GenerationSettings& settings,
                                 const std::function<bool(int32_t)>& on_token) {
  const auto turn = impl_->context.TakeTurn();
  const Model& model = impl_->model.impl().model;
  const Tokenizer& tokenizer = model.RequireTokenizer();
  const std::vector<int32_t> ids(prompt.begin(), prompt.end());
  const SamplingOptions sampling = SamplingOf(settings);
  Check(!ids.empty(), "the prompt has no tokens to continue");
  CheckFits(std::ssize(ids), settings.max_tokens, impl_->decoder.config());
  Listener listener(tokenizer, settings, on_token);
  listener.Follow(ids);
  const std::vector<int32_t> stop = settings.stop_at_end ? StopTokens(model) : std::vector<int32_t>();
  impl_->Expect(settings.max_tokens);
  GenerationResult reply =
      shiftrt::Generate(impl_->decoder, ids, settings.max_tokens, sampling, settings.seed, stop, std::ref(listener));
  listener.Finish();
  std::string text = DecodeReply(tokenizer, ids, Spelled(reply.tokens, tokenizer));
  return {std::move(reply.tokens), std::ssize(ids), std::move(text), reply.prefill_seconds, reply.decode_seconds};
}

GenerationTotals ModelRunner::GenerateMany(std::span<const std::vector<int32_t>> prompts,
                                           const GenerationSettings& settings, int64_t batch,
                                           const std::function<void(size_t, const Generation&)>& on_reply,
                                           const std::function<bool(size_t, int32_t)>& on_token) {
  const auto turn = impl_->context.TakeTurn();
  if (settings.on_text) FailUsage(Field("on_text"), "many replies have no one text: leave it out");
  if (batch < 1) FailUsage(Field("batch"), "{} prompts together, expected at least 1", batch);
  const Model& model = impl_->model.impl().model;
  const Tokenizer& tokenizer = model.RequireTokenizer();
  const std::vector<int32_t> stop = settings.stop_at_end ? StopTokens(model) : std::vector<int32_t>();
  impl_->Expect(std::min(settings.max_tokens, Impl::kManyTokens) * std::ssize(prompts));
  std::map<size_t, int32_t> ended;
  const auto on_stop = [&](size_t i, int32_t token) { ended[i] = token; };
  const ManyRequest request = {
      settings.max_tokens, SamplingOf(settings), settings.seed, stop, batch, on_token, on_stop};
  return shiftrt::GenerateMany(impl_->decoder, prompts, request, [&](size_t i, std::vector<int32_t> tokens) {
    std::string text = DecodeReply(tokenizer, prompts[i], Spelled(tokens, tokenizer));
    const auto end = ended.find(i);
    on_reply(i, {.tokens = std::move(tokens),
                 .prompt_tokens = std::ssize(prompts[i]),
                 .text = std::move(text),
                 .end = end != ended.end() ? end->second : -1});
  });
}

struct Conversation::Impl {
  // The cache grows by doubling, so that growing costs no more than it saves.
  static constexpr int64_t kFirstCapacity = 1024;

  Impl(Decoder& decoder, const Model& model, std::string_view system)
      : decoder(decoder),
        model(model),
        chat(RequireChatTemplate(model)),
        cache(decoder.config(), decoder.plan(), std::min(kFirstCapacity, decoder.config().max_positions)) {
    if (!system.empty()) messages.push_back({"system", std::string(system)});
  }

  // Makes room for `length` tokens. A cache that grows forgets what it held.
  void Reserve(int64_t length) {
    if (length <= cache.capacity()) return;
    const ModelConfig& config = decoder.config();
    cache = KvCache(config, decoder.plan(), std::min(config.max_positions, std::max(length, 2 * cache.capacity())));
    held.clear();
  }
  // Keeps what the cache can keep of `tokens`, but never the last of them: the reply follows from its row. If the reply
  // fails, the cache has more tokens than `held`, and the next call removes them.
  int64_t Keep(const std::vector<int32_t>& tokens) {
    const auto end = tokens.begin() + std::min(std::ssize(tokens) - 1, std::ssize(held));
    const int64_t kept = cache.Truncate(std::mismatch(tokens.begin(), end, held.begin()).first - tokens.begin());
    held.resize(static_cast<size_t>(kept));
    return kept;
  }

  Decoder& decoder;
  const Model& model;
  const std::unique_ptr<ChatTemplate> chat;
  std::vector<ChatMessage> messages;
  KvCache cache;
  std::vector<int32_t> held;  // the tokens that the cache holds
};

Conversation::Conversation(ModelRunner& runner, std::string_view system)
    : impl_(std::make_unique<Impl>(runner.impl_->decoder, runner.impl_->model.impl().model, system)) {
  runner.impl_->Expect(ModelRunner::Impl::kManyTokens);
}
Conversation::~Conversation() = default;

Generation Conversation::Reply(std::string_view message, const GenerationSettings& settings,
                               const std::function<bool(int32_t)>& on_token) {
  Impl& impl = *impl_;
  const auto turn = impl.decoder.context().TakeTurn();
  const Tokenizer& tokenizer = impl.model.RequireTokenizer();
  const SamplingOptions sampling = SamplingOf(settings);
  std::vector<ChatMessage> messages = impl.messages;  // a reply that fails leaves the conversation as it was
  messages.push_back({"user", std::string(message)});
  const std::vector<int32_t> tokens = tokenizer.Encode(impl.chat->Render(messages));
  const int64_t length = std::ssize(tokens), positions = impl.decoder.config().max_positions;
  Check(length < positions, "the conversation has {} tokens and fills the model's context of {}; start a new one",
        length, positions);
  const int64_t room = std::min(settings.max_tokens, positions - length);
  impl.Reserve(length + room);
  const int64_t kept = impl.Keep(tokens);
  Listener listener(tokenizer, settings, on_token);
  const std::vector<int32_t> stop = settings.stop_at_end ? StopTokens(impl.model) : std::vector<int32_t>();
  GenerationResult result = Continue(impl.decoder, impl.cache, std::span(tokens).subspan(static_cast<size_t>(kept)),
                                     {room, sampling, settings.seed, stop, std::ref(listener)});
  listener.Finish();
  impl.held = tokens;
  impl.held.insert(impl.held.end(), result.tokens.begin(), result.tokens.end());
  impl.held.resize(static_cast<size_t>(impl.cache.size()));
  std::string text = tokenizer.Decode(Spelled(result.tokens, tokenizer), true);
  messages.push_back({"assistant", text});
  impl.messages = std::move(messages);
  return {std::move(result.tokens), length - kept, std::move(text), result.prefill_seconds, result.decode_seconds};
}

std::vector<std::vector<float>> ModelRunner::LogProbabilities(std::span<const std::vector<int32_t>> sequences) {
  const auto turn = impl_->context.TakeTurn();
  Batch batch;
  std::vector<int64_t> rows;
  std::vector<int32_t> targets;
  for (const std::vector<int32_t>& sequence : sequences) {
    Check(sequence.size() >= 2, "a sequence of {} tokens has no token to predict; it takes 2", sequence.size());
    for (size_t i = 1; i < sequence.size(); ++i) {
      rows.push_back(batch.size() + static_cast<int64_t>(i) - 1);
      targets.push_back(sequence[i]);
    }
    batch.Add(sequence);
  }
  if (rows.empty()) return {};
  const std::vector<float> all = impl_->decoder.LogProbs(impl_->decoder.Forward(batch), rows, targets);
  std::vector<std::vector<float>> parts;
  auto at = all.begin();
  for (const std::vector<int32_t>& sequence : sequences) {
    const auto end = at + std::ssize(sequence) - 1;
    parts.emplace_back(at, end);
    at = end;
  }
  return parts;
}

SequenceCache ModelRunner::NewSequence(int64_t capacity) const {
  const ModelConfig& config = impl_->decoder.config();
  Check(capacity >= 1 && capacity <= config.max_positions, "a sequence of {} tokens; the model takes between 1 and {}",
        capacity, config.max_positions);
  return SequenceCache(
      std::make_unique<SequenceCache::Impl>(SequenceCache::Impl{KvCache(config, impl_->decoder.plan(), capacity)}));
}

std::vector<float> ModelRunner::NextLogits(std::span<const int32_t> tokens, SequenceCache& sequence) {
  const auto turn = impl_->context.TakeTurn();
  Check(!tokens.empty(), "no tokens to append to a sequence");
  const Rows stream = impl_->decoder.Forward(tokens, sequence.impl_->cache);
  const Matrix<float> logits = impl_->decoder.Logits(stream.Slice(stream.count() - 1, 1));
  return {logits.row(0), logits.row(0) + logits.cols()};
}

namespace {

Batch OneSequence(std::span<const int32_t> tokens) {
  Batch batch;
  batch.Add(tokens);
  return batch;
}

}  // namespace

void ModelRunner::Logits(std::span<const int32_t> tokens, std::span<float> logits) {
  const auto turn = impl_->context.TakeTurn();
  Check(!tokens.empty(), "a sequence without tokens has no logits");
  const int64_t vocabulary = impl_->decoder.config().vocab;
  if (std::ssize(logits) != std::ssize(tokens) * vocabulary)
    FailUsage(Field("logits"), "room for {} floats, expected {} tokens x {} logits", logits.size(), tokens.size(),
              vocabulary);
  // Some rows at a time: a copy of all logits besides the caller's would double the memory.
  constexpr int64_t kRows = 128;
  const Rows stream = impl_->decoder.Forward(OneSequence(tokens));
  for (int64_t first = 0; first < stream.count(); first += kRows) {
    const Matrix<float> part = impl_->decoder.Logits(stream.Slice(first, std::min(kRows, stream.count() - first)));
    std::copy_n(part.data(), part.size(), logits.begin() + first * vocabulary);
  }
}

void ModelRunner::Impl::Listen(std::span<const int32_t> tokens, const std::vector<int64_t>& layers, TapPoint point,
                               const std::function<void(int64_t, std::span<const float>)>& receive) const {
  Check(!tokens.empty(), "a sequence without tokens has no hidden states");
  const auto turn = context.TakeTurn();
  std::vector<Tap> taps;
  taps.reserve(layers.size());
  for (const int64_t layer : layers)
    taps.push_back({layer, point, [&, layer, received = false](const Rows& rows, const Batch&) mutable {
                      if (std::exchange(received, true)) return;  // a layer whose halves are two stages
                      const HostRows here = rows.ToHost();
                      receive(layer, {here.view().data, static_cast<size_t>(rows.count() * rows.hidden())});
                    }});
  // A decoder of its own, because taps belong to a decoder; weights, and their copies on a GPU, are shared.
  const Model& opened = model.impl().model;
  Decoder decoder(context, opened.weights, opened.plan, std::move(taps));
  decoder.Forward(OneSequence(tokens));
}

void ModelRunner::HiddenStates(std::span<const int32_t> tokens,
                               const std::function<void(int64_t, std::span<const float>)>& on_stream) {
  std::vector<int64_t> layers = impl_->model.impl().model.plan.KeptLayers();
  layers.push_back(impl_->model.Shape().layers);
  impl_->Listen(tokens, layers, TapPoint::kInput, on_stream);
}

void ModelRunner::Updates(std::span<const int32_t> tokens,
                          const std::function<void(int64_t, std::span<const float>)>& on_update) {
  impl_->Listen(tokens, impl_->model.impl().model.plan.KeptLayers(), TapPoint::kUpdate, on_update);
}

}  // namespace shiftrt
