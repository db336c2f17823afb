// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/runner.h"

#include <algorithm>
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
  impl_->cache.Truncate(size);
}

struct ModelRunner::Impl {
  Impl(const LanguageModel& model, const Resources& resources)
      : model(model),
        context(MakeContext(resources)),
        decoder(context, model.impl().model.weights, model.impl().model.plan) {}

  LanguageModel model;
  Context context;
  Decoder decoder;
};

ModelRunner::ModelRunner(const LanguageModel& model, const Resources& resources)
    : impl_(std::make_unique<Impl>(model, resources)) {}
ModelRunner::ModelRunner(ModelRunner&&) noexcept = default;
ModelRunner& ModelRunner::operator=(ModelRunner&&) noexcept = default;
ModelRunner::~ModelRunner() = default;

Generation ModelRunner::Generate(std::string_view prompt, const GenerationSettings& settings,
                                 const std::function<bool(int32_t)>& on_token) {
  const Tokenizer& tokenizer = impl_->model.impl().model.RequireTokenizer();
  const std::vector<int32_t> ids = tokenizer.EncodeWithBos(prompt);
  const ModelConfig& config = impl_->decoder.config();
  CheckFits(std::ssize(ids), settings.max_tokens, config);
  const SamplingOptions sampling{settings.temperature, settings.top_p, settings.top_k};
  const auto go_on = [&](int32_t token) {
    CheckInterrupted();
    return !on_token || on_token(token);
  };
  GenerationResult reply =
      shiftrt::Generate(impl_->decoder, ids, settings.max_tokens, sampling, settings.seed,
                        settings.stop_at_end ? std::span(config.eos_tokens) : std::span<const int32_t>(), go_on);
  // Ids of a vocabulary that is padded beyond the tokenizer's stand for no text.
  std::vector<int32_t> spelled = reply.tokens;
  std::erase_if(spelled, [&](int32_t token) { return token >= tokenizer.vocab_size(); });
  return {std::move(reply.tokens), DecodeReply(tokenizer, ids, spelled), reply.prefill_seconds, reply.decode_seconds};
}

std::vector<std::vector<float>> ModelRunner::LogProbabilities(std::span<const std::vector<int32_t>> sequences) {
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
  Check(!tokens.empty(), "a sequence without tokens has no logits");
  const int64_t vocabulary = impl_->decoder.config().vocab;
  if (std::ssize(logits) != std::ssize(tokens) * vocabulary)
    FailUsage(Field("logits"), "room for {} floats, expected {} tokens x {} logits", logits.size(), tokens.size(),
              vocabulary);
  // Some rows at a time: a copy of all logits beside the caller's would double the memory.
  constexpr int64_t kRows = 128;
  const Rows stream = impl_->decoder.Forward(OneSequence(tokens));
  for (int64_t first = 0; first < stream.count(); first += kRows) {
    const Matrix<float> part = impl_->decoder.Logits(stream.Slice(first, std::min(kRows, stream.count() - first)));
    std::copy_n(part.data(), part.size(), logits.begin() + first * vocabulary);
  }
}

void ModelRunner::HiddenStates(std::span<const int32_t> tokens,
                               const std::function<void(int64_t, std::span<const float>)>& on_stream) {
  Check(!tokens.empty(), "a sequence without tokens has no hidden states");
  const LanguageModel::Impl& model = impl_->model.impl();
  std::vector<int64_t> layers = model.model.plan.KeptLayers();
  layers.push_back(impl_->model.Shape().layers);
  std::vector<Tap> taps;
  for (const int64_t layer : layers)
    taps.push_back({layer, TapPoint::kInput, [&, layer, heard = false](const Rows& rows, const Batch&) mutable {
                      if (std::exchange(heard, true)) return;  // a layer whose halves are two stages
                      const HostRows here = rows.ToHost();
                      on_stream(layer, {here.view().data, static_cast<size_t>(rows.count() * rows.hidden())});
                    }});
  // A decoder of its own, because taps belong to a decoder; weights, and their copies on a GPU, are shared.
  Decoder decoder(impl_->context, model.model.weights, model.model.plan, std::move(taps));
  decoder.Forward(OneSequence(tokens));
}

}  // namespace shiftrt
