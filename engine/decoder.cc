// SPDX-License-Identifier: Apache-2.0
#include "engine/decoder.h"

#include <algorithm>
#include <set>

#include "engine/activations.h"
#include "engine/backend.h"
#include "engine/layer_loop.h"
#include "engine/model_part.h"
#include "runtime/check.h"

namespace shiftrt {

void Batch::Add(std::span<const int32_t> sequence, int64_t parent) {
  Check(parent >= -1 && parent < sequences(), "sequence {} of a batch cannot continue sequence {}", sequences(),
        parent);
  tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  offsets.push_back(size());
  parents.push_back(parent);
}

KvCache::KvCache(const ModelConfig& config, const DepthPlan& plan, int64_t capacity)
    : slots_(plan.attention_blocks()),
      kv_dim_(config.kv_dim()),
      recurrent_(RecurrentBlocks(config, plan) > 0),
      capacity_(capacity) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

int64_t KvCache::Truncate(int64_t size) {
  Check(size >= 0 && size <= size_, "cannot keep {} of {} cached positions", size, size_);
  return size_ = recurrent_ && size < size_ ? 0 : size;
}

namespace {

void CheckTargets(int64_t rows, std::span<const int32_t> targets, std::span<const int32_t> argmax) {
  Check(std::ssize(targets) == rows && (argmax.empty() || argmax.size() == targets.size()),
        "scores of {} targets for {} rows", targets.size(), rows);
}

// The stages with the adapters of their blocks (Weights::adapters), each before the first stage of its block.
std::vector<Stage> WithBlockAdapters(const Weights& weights, std::span<const Stage> stages) {
  std::vector<Stage> all;
  for (const Stage& stage : stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          if (RunsAttention(block.halves))
            for (const auto& lra : weights.adapters[block.layer]) all.emplace_back(AdapterStage{{}, lra});
        },
        [](const AdapterStage&) {});
    all.push_back(stage);
  }
  return all;
}

}  // namespace

struct Decoder::Impl {
  Context context;
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  std::vector<Stage> with_adapters;  // the plan's, if blocks have adapters
  TapSet taps;
  std::unique_ptr<ModelPart> part;  // null unless the model is split over processes
  std::unique_ptr<Backend> backend;

  Rows Run(const LayerCall& call) const {
    const auto run = [&](const LayerCall& of_part) { return RunLayers(*backend, taps, of_part); };
    return part ? part->Run(call, taps, run) : run(call);
  }
  std::span<const Stage> stages() const { return weights->adapters.empty() ? plan.stages : with_adapters; }
  // True if this process has the head.
  bool scores() const { return !part || part->last(); }
  // The result of `run` for the call that continues the sequences, each of which has another cache.
  template <typename Result>
  Result Continue(std::span<const CachedTokens> sequences, const Draw* draw,
                  const std::function<Result(const LayerCall&)>& run) const;
  template <typename Result>
  Result Continue(std::span<const int32_t> tokens, KvCache& cache, const Draw* draw,
                  const std::function<Result(const LayerCall&)>& run) const {
    const CachedTokens one{tokens, &cache};
    return Continue(std::span(&one, 1), draw, run);
  }
};

Decoder::Decoder(const Context& context, std::shared_ptr<const Weights> weights, DepthPlan plan, std::vector<Tap> taps)
    : impl_(std::make_unique<Impl>()) {
  CheckStages(*weights, plan.stages);
  impl_->taps = TapSet(std::move(taps));
  impl_->taps.Check(plan.stages, weights->config.layers, /*everything=*/true);
  BackendSetup setup{context, weights, plan, !impl_->taps.empty()};
  if (!weights->adapters.empty()) {
    Check(!weights->split(), "adapters of blocks in a model that is split over processes");
    setup.plan.stages = impl_->with_adapters = WithBlockAdapters(*weights, plan.stages);
  }
  if (weights->split()) {
    impl_->part = std::make_unique<ModelPart>(context.processes, weights);
    const std::span<const Stage> mine = impl_->part->Mine(plan.stages);
    setup.plan.stages.assign(mine.begin(), mine.end());
  }
  impl_->backend = context.device == Device::kCuda ? MakeCudaBackend(setup) : MakeCpuBackend(setup);
  impl_->context = context;
  impl_->weights = std::move(weights);
  impl_->plan = std::move(plan);
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

const Context& Decoder::context() const { return impl_->context; }

Rows Decoder::Forward(const Batch& batch, bool taps_only) {
  CheckLengths(config(), batch);
  return impl_->Run({.batch = batch, .stages = impl_->stages(), .next = config().layers, .taps_only = taps_only});
}

Rows Decoder::Resume(const Batch& batch, const Rows& residual, std::span<const Stage> stages, bool taps_only) {
  Check(residual.count() == batch.size() && residual.hidden() == config().hidden,
        "a stream of ({}, {}) for {} tokens of hidden size {}", residual.count(), residual.hidden(), batch.size(),
        config().hidden);
  CheckStages(weights(), stages);
  CheckLengths(config(), batch);
  impl_->taps.Check(stages, config().layers, /*everything=*/false);
  std::vector<Stage> with_adapters;
  if (!weights().adapters.empty()) stages = with_adapters = WithBlockAdapters(weights(), stages);
  return impl_->Run({.batch = batch, .stages = stages, .residual = &residual, .taps_only = taps_only});
}

template <typename Result>
Result Decoder::Impl::Continue(std::span<const CachedTokens> sequences, const Draw* draw,
                               const std::function<Result(const LayerCall&)>& run) const {
  const int64_t slots = plan.attention_blocks(), kv_dim = weights->config.kv_dim();
  Batch batch;
  std::vector<Continued> continued;
  for (const CachedTokens& sequence : sequences) {
    KvCache& cache = *sequence.cache;
    const int64_t count = std::ssize(sequence.tokens);
    Check(cache.slots_ == slots && cache.kv_dim_ == kv_dim,
          "a cache of {} blocks and keys of {} for a plan of {} and keys of {}", cache.slots_, cache.kv_dim_, slots,
          kv_dim);
    Check(cache.size_ + count <= cache.capacity_, "the KV cache holds {} of {} positions; {} more do not fit",
          cache.size_, cache.capacity_, count);
    if (cache.storage_ == nullptr) cache.storage_ = backend->MakeCache(cache.capacity_);
    batch.Add(sequence.tokens);
    continued.push_back({cache.storage_.get(), cache.size_});
  }
  Result result =
      run({.batch = batch, .stages = stages(), .continued = continued, .next = weights->config.layers, .draw = draw});
  for (const CachedTokens& sequence : sequences) sequence.cache->size_ += std::ssize(sequence.tokens);
  return result;
}

Rows Decoder::Forward(std::span<const int32_t> tokens, KvCache& cache) {
  return impl_->Continue<Rows>(tokens, cache, nullptr, [&](const LayerCall& call) { return impl_->Run(call); });
}

int32_t Decoder::NextToken(std::span<const int32_t> tokens, KvCache& cache, const SamplingOptions& sampling,
                           double uniform) {
  Check(!tokens.empty(), "no token to continue after");
  const Draw draw{sampling, uniform};
  return impl_->Continue<int32_t>(tokens, cache, &draw, [&](const LayerCall& call) {
    impl_->Run(call);
    return TakeToken();
  });
}

std::vector<int32_t> Decoder::NextTokens(std::span<const CachedTokens> sequences) {
  std::vector<int32_t> chosen(sequences.size(), -1);
  if (impl_->part || sequences.size() == 1) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const CachedTokens& one = sequences[s];
      if (one.choice) {
        chosen[s] = NextToken(one.tokens, *one.cache, one.choice->sampling, one.choice->uniform);
      } else {
        Forward(one.tokens, *one.cache);
      }
    }
    return chosen;
  }
  std::set<const KvCache*> caches;
  std::vector<ChoosingRow> choosing;
  std::vector<size_t> of;  // the sequence of each of them
  int64_t end = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const CachedTokens& one = sequences[s];
    Check(!one.tokens.empty(), "no token to continue after");
    Check(caches.insert(one.cache).second, "two sequences of a call continue one cache");
    end += std::ssize(one.tokens);
    if (!one.choice) continue;
    choosing.push_back({end - 1, {one.choice->sampling, one.choice->uniform}});
    of.push_back(s);
  }
  const Rows stream =
      impl_->Continue<Rows>(sequences, nullptr, [&](const LayerCall& call) { return impl_->Run(call); });
  if (choosing.empty()) return chosen;
  const std::vector<int32_t> tokens = impl_->backend->ChooseAfter(stream, choosing);
  for (size_t i = 0; i < of.size(); ++i) chosen[of[i]] = tokens[i];
  return chosen;
}

void Decoder::StartToken(std::span<const int32_t> tokens, KvCache& cache, const SamplingOptions& sampling,
                         double uniform) {
  Check(!tokens.empty(), "no token to continue after");
  const Draw draw{sampling, uniform};
  impl_->Continue<Rows>(tokens, cache, &draw, [&](const LayerCall& call) { return impl_->Run(call); });
}

bool Decoder::StartNext(KvCache& cache, const SamplingOptions& sampling, double uniform) {
  if (impl_->part || !impl_->taps.empty() || !impl_->backend->RunsAhead() || cache.size() == cache.capacity())
    return false;
  const Draw draw{sampling, uniform};
  const int32_t unknown = 0;
  impl_->Continue<Rows>(std::span(&unknown, 1), cache, &draw, [&](LayerCall call) {
    call.on_chosen = true;
    return impl_->Run(call);
  });
  return true;
}

int32_t Decoder::TakeToken() {
  const int32_t chosen = impl_->scores() ? impl_->backend->Chosen() : -1;
  return impl_->part ? impl_->part->Token(chosen) : chosen;
}

Matrix<float> Decoder::Logits(const Rows& residual) {
  Check(impl_->scores(), "logits are computed by the process that has the head of the model");
  return impl_->backend->Logits(residual);
}

std::vector<float> Decoder::LogProbs(const Rows& residual, std::span<const int32_t> targets,
                                     std::span<int32_t> argmax) {
  CheckTargets(residual.count(), targets, argmax);
  if (!impl_->scores()) return std::vector<float>(targets.size(), 0);
  return impl_->backend->LogProbs({residual, std::nullopt, targets}, argmax);
}

std::vector<float> Decoder::LogProbs(const Rows& stream, std::span<const int64_t> which,
                                     std::span<const int32_t> targets, std::span<int32_t> argmax) {
  CheckTargets(std::ssize(which), targets, argmax);
  for (const int64_t row : which)
    Check(row >= 0 && row < stream.count(), "row {} of a stream of {} tokens", row, stream.count());
  if (!impl_->scores()) return std::vector<float>(targets.size(), 0);
  return impl_->backend->LogProbs({stream, which, targets}, argmax);
}

const Weights& Decoder::weights() const { return *impl_->weights; }
const DepthPlan& Decoder::plan() const { return impl_->plan; }

}  // namespace shiftrt
