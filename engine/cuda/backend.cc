// SPDX-License-Identifier: Apache-2.0
// The layers and the head on a GPU.
#include "engine/backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>

#include "engine/activations.h"
#include "engine/cuda/many_tokens.h"
#include "engine/cuda/one_token.h"
#include "engine/cuda/state.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rowwise.h"
#include "kernels/cuda/scores.h"
#include "runtime/check.h"
#include "runtime/cuda/upload.h"

namespace shiftrt {

namespace {

using gpu::DeviceArray;
using gpu::DeviceBuffer;

// Chosen tokens on their way to the host.
class Choices {
 public:
  ~Choices() {
    for (const auto& slot : slots_)
      if (slot != nullptr) slot->arrived.WaitQuietly();
  }
  void Add(gpu::Stream stream, const int32_t* chosen) {
    Check(open_.size() < slots_.size(), "{} tokens were started and none was taken", open_.size());
    std::unique_ptr<Slot>& slot = slots_[next_];
    if (slot == nullptr) slot = std::make_unique<Slot>(stream);
    gpu::CopyToPinned(stream, slot->token, chosen, sizeof(*chosen));
    slot->arrived.Record();
    open_.push_back(std::exchange(next_, (next_ + 1) % slots_.size()));
  }
  int32_t Take() {
    Check(!open_.empty(), "no token was started");
    Slot& slot = *slots_[open_.front()];
    open_.pop_front();
    slot.arrived.Wait();
    int32_t token = 0;
    std::memcpy(&token, slot.token.data(), sizeof(token));
    return token;
  }
  void Forget() { open_.clear(); }

 private:
  struct Slot {
    explicit Slot(gpu::Stream stream) : token(stream, sizeof(int32_t)), arrived(stream) {}
    gpu::PinnedBuffer token;
    gpu::Event arrived;
  };
  std::array<std::unique_ptr<Slot>, 2> slots_;  // used in turn
  std::deque<size_t> open_;                     // the oldest first
  size_t next_ = 0;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const BackendSetup& setup) : s_(setup), slots_(setup.plan.attention_blocks()) {}
  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override;
  Rows Run(const LayerCall& call, const std::function<void(Layers&)>& loop) override;
  int32_t Chosen() override;
  bool RunsAhead() const override { return !s_.tapped(); }
  Matrix<float> Logits(const Rows& residual) override;
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  Rows Launch(const LayerCall& call, const std::function<void(Layers&)>& loop);
  Rows LaunchBegun(const LayerCall& call, const std::function<void(Layers&)>& loop);

  CudaState s_;
  int64_t slots_;  // slots per cache
  ManyTokens many_{s_};
  OneToken one_{s_};
  // The properties, besides the plan, for which the recorded launches are valid.
  struct Recorded {
    const CudaKv* cache = nullptr;  // the cache that they write to
    bool chooses = false;           // they end with a token's choice
    const float* from = nullptr;    // the stream that they begin with; null: the embedding of a token
    bool operator==(const Recorded&) const = default;
  } recorded_;
  Choices choices_;
};

std::unique_ptr<KvStorage> CudaBackend::MakeCache(int64_t capacity) {
  auto cache = std::make_unique<CudaKv>(s_.rows(), capacity);
  const int64_t bytes = capacity * s_.config().kv_dim() * static_cast<int64_t>(SizeOf(s_.dtype()));
  try {
    for (int64_t i = 0; i < slots_; ++i)
      cache->slots.push_back({DeviceBuffer<std::byte>(s_.stream(), bytes, "the KV cache"),
                              DeviceBuffer<std::byte>(s_.stream(), bytes, "the KV cache")});
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + 2 * bytes * std::ssize(cache->slots);
    throw OutOfMemory(error, fmt::format("a cache of {} positions was asked for, about {} would fit", capacity,
                                         room * capacity / (2 * bytes * slots_)));
  }
  s_.graph().Reset();  // a new cache may stand where an old one did
  return cache;
}

Rows CudaBackend::Run(const LayerCall& call, const std::function<void(Layers&)>& loop) {
  try {
    return Launch(call, loop);
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + s_.ReleaseScratch(),
                  fit = room / ActivationBytesPerToken(s_.config(), s_.dtype());
    if (fit >= call.batch.size()) throw;  // it was not the batch
    throw OutOfMemory(error, fmt::format("this batch has {} tokens, about {} would fit", call.batch.size(), fit));
  }
}

Rows CudaBackend::Launch(const LayerCall& call, const std::function<void(Layers&)>& loop) {
  if (!call.on_chosen && call.draw != nullptr) {
    choices_.Forget();
    s_.Ask(*call.draw);
  }
  s_.Start(call);
  Rows stream = LaunchBegun(call, loop);
  if (call.draw != nullptr) choices_.Add(s_.stream(), s_.chosen());
  return stream;
}

Rows CudaBackend::LaunchBegun(const LayerCall& call, const std::function<void(Layers&)>& loop) {
  if (s_.step().count == 1 && s_.cache() != nullptr && !s_.tapped()) {
    const Recorded wanted{s_.cache(), call.draw != nullptr,
                          call.residual != nullptr ? s_.Here(*call.residual) : nullptr};
    one_.StartFrom(wanted.from);
    if (recorded_ != wanted) s_.graph().Reset();
    recorded_ = wanted;
    s_.graph().Run(s_.stream(), [&] { loop(one_); });
    return one_.Stream();
  }
  s_.graph().Reset();  // buffers may move
  loop(many_);
  return call.taps_only ? Rows() : many_.Stream();
}

int32_t CudaBackend::Chosen() {
  const int32_t token = choices_.Take();
  if (token < 0) FailOfNaN();
  return token;
}

Matrix<float> CudaBackend::Logits(const Rows& residual) {
  Matrix<float> out(residual.count(), s_.config().vocab);
  const float* const rows = s_.Here(residual);
  float* const logits = s_.Floats(CudaArray::kLogits, s_.config().vocab);
  for (int64_t i = 0; i < residual.count(); ++i) {
    s_.Head(rows + i * s_.hidden(), logits);
    gpu::CopyToHost(s_.stream(), out.row(i), logits, s_.config().vocab * static_cast<int64_t>(sizeof(float)));
  }
  return out;
}

std::vector<float> CudaBackend::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const auto count = std::ssize(scored.targets);
  const int64_t vocab = s_.config().vocab;
  for (int32_t target : scored.targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
  s_.graph().Reset();  // arrays of its launches may move
  const DeviceBuffer<int32_t> wanted(s_.stream(), scored.targets, kActivations), best(s_.stream(), count, kActivations);
  const DeviceBuffer<float> log_probs(s_.stream(), count, kActivations);
  const DeviceBuffer<gpu::TokenScore> scores(s_.stream(), std::min(count, kGpuScoredRows), kActivations);
  const float* const stream = s_.Here(scored.stream);
  DeviceBuffer<int32_t> which;
  if (scored.which) {
    const std::vector<int32_t> narrow(scored.which->begin(), scored.which->end());
    which = DeviceBuffer<int32_t>(s_.stream(), std::span<const int32_t>(narrow), kActivations);
  }
  const gpu::WeightRows& head = s_.HeadWeights();
  for (int64_t first = 0; first < count; first += kGpuScoredRows) {
    const int64_t m = std::min(kGpuScoredRows, count - first);
    // Nothing is pending, so the norm leaves the rows as they are.
    float* rows = const_cast<float*>(stream) + first * s_.hidden();
    if (scored.which) {
      rows = s_.Floats(CudaArray::kGathered, m * s_.hidden());
      gpu::GatherRows(s_.stream(), which.data() + first,
                      MatrixView<const float>(stream, scored.stream.count(), s_.hidden()),
                      MatrixView<float>(rows, m, s_.hidden()));
    }
    const DeviceArray x = s_.Get(CudaArray::kNormed, m * s_.hidden(), s_.dtype());
    gpu::AddNorm(s_.stream(), {rows, m, s_.hidden()}, {}, s_.FinalNorm(), x);
    for (int64_t v = 0; v < vocab; v += kGpuVocabChunk) {
      const int64_t n = std::min(kGpuVocabChunk, vocab - v);
      const DeviceArray logits = s_.Get(CudaArray::kLogits, m * n, DType::kFloat32);
      s_.MatMul({.x = x, .y = logits, .m = m, .n = n, .k = s_.hidden()}, head.Rows(v, n, s_.hidden()));
      if (s_.spec().logit_cap > 0)
        gpu::SoftCapRows(s_.stream(), s_.spec().logit_cap, {static_cast<float*>(logits.data), m, n});
      gpu::UpdateScores(s_.stream(), {static_cast<const float*>(logits.data), m, n, v, vocab}, wanted.data() + first,
                        scores.data(), log_probs.data() + first, best.data() + first);
    }
  }
  std::vector<float> out(count);
  gpu::CopyToHost(s_.stream(), out.data(), log_probs.data(), count * static_cast<int64_t>(sizeof(float)));
  if (!argmax.empty())
    gpu::CopyToHost(s_.stream(), argmax.data(), best.data(), count * static_cast<int64_t>(sizeof(int32_t)));
  return out;
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const BackendSetup& setup) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaBackend>(setup);
}

}  // namespace shiftrt
