// SPDX-License-Identifier: Apache-2.0
// The layers and the head on a GPU.
#include "engine/backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
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

constexpr size_t kChosenTogether = gpu::kFewTokens;  // rows whose logits exist at a time while tokens are chosen

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

// Forgets recorded launches at its end if an array that they use has moved since it was made. Those of `running` were
// not recorded then.
class MovesSeen {
 public:
  explicit MovesSeen(CudaState& state, const gpu::LaunchGraph* running = nullptr)
      : state_(state), running_(running), bytes_(state.ScratchBytes()) {}
  ~MovesSeen() {
    if (state_.ScratchBytes() != bytes_) state_.ResetGraphs(running_);
  }
  MovesSeen(const MovesSeen&) = delete;
  MovesSeen& operator=(const MovesSeen&) = delete;

 private:
  CudaState& state_;
  const gpu::LaunchGraph* const running_;
  const int64_t bytes_;
};

// A call in which 2 to 32 sequences append one token each is given 2, 4, 8, 16 or 32 rows: its last sequence again in
// the place of those that are missing, which write the same numbers to the same places. So the products of a row are
// the same, whichever and how many the others of its class are.
class FullStep {
 public:
  FullStep(const LayerCall& call, bool tapped) {
    const int64_t count = call.batch.size();
    if (tapped || count < 2 || count > gpu::kFewTokens || std::ssize(call.continued) != count) return;
    batch_ = call.batch;
    continued_.assign(call.continued.begin(), call.continued.end());
    while (continued_.size() < std::bit_ceil(call.continued.size())) {
      batch_.Add(std::span(call.batch.tokens).last(1));
      continued_.push_back(continued_.back());
    }
  }
  LayerCall Of(const LayerCall& call) const {
    if (continued_.empty()) return call;
    return {.batch = batch_, .stages = call.stages, .continued = continued_, .next = call.next};
  }

 private:
  Batch batch_;
  std::vector<Continued> continued_;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const BackendSetup& setup) : s_(setup), caches_(MakeCaches(setup.plan)) {}
  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override { return caches_->Make(capacity); }
  Rows Run(const LayerCall& call, const std::function<void(Layers&)>& loop) override;
  int32_t Chosen() override;
  // A step in vain would leave a later state than the cache's.
  bool RunsAhead() const override { return !s_.tapped() && !caches_->recurrent(); }
  std::vector<int32_t> ChooseAfter(const Rows& stream, std::span<const ChoosingRow> rows) override;
  Matrix<float> Logits(const Rows& residual) override;
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  std::shared_ptr<KvPool> MakeCaches(const DepthPlan& plan) const {
    std::vector<Mixer> mixers;
    for (const BlockStage* block : plan.Blocks())
      if (RunsAttention(block->halves)) mixers.push_back(s_.spec().MixerOf(block->layer));
    return std::make_shared<KvPool>(s_.rows(), mixers, s_.config().kv_dim() * static_cast<int64_t>(SizeOf(s_.dtype())),
                                    s_.spec().delta.sequence_floats() * static_cast<int64_t>(sizeof(float)));
  }
  Rows Launch(const LayerCall& call, const std::function<void(Layers&)>& loop);
  Rows LaunchBegun(const LayerCall& call, const std::function<void(Layers&)>& loop);

  CudaState s_;
  const std::shared_ptr<KvPool> caches_;
  ManyTokens many_{s_};
  OneToken one_{s_};
  // The properties, besides the plan and the number of tokens, for which recorded launches are valid.
  struct Recorded {
    int64_t caches = -1, keys = 0;  // the version of the arrays of caches, and the most keys of a query
    bool chooses = false;           // they end with a token's choice
    const float* from = nullptr;    // the stream that they begin with; null: the embedding of a token
    bool operator==(const Recorded&) const = default;
  };
  std::map<const gpu::LaunchGraph*, Recorded> recorded_;
  Choices choices_;
};

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
  for (const Continued& continued : call.continued)
    Check(static_cast<const CudaKv&>(*continued.cache).pool == caches_, "a cache that another decoder allocated");
  if (!call.on_chosen && call.draw != nullptr) {
    choices_.Forget();
    s_.Ask(*call.draw);
  }
  const FullStep step(call, s_.tapped());
  s_.Start(step.Of(call));
  Rows stream = LaunchBegun(call, loop);
  if (call.draw != nullptr) choices_.Add(s_.stream(), s_.chosen());
  return stream;
}

Rows CudaBackend::LaunchBegun(const LayerCall& call, const std::function<void(Layers&)>& loop) {
  const int64_t tokens = s_.step().count;
  const auto rows = [&] { return many_.Stream().Slice(0, call.batch.size()); };
  const bool recorded =
      s_.caches() != nullptr && !s_.tapped() && (tokens == 1 || (s_.step().one_each && tokens <= gpu::kFewTokens));
  if (!recorded) {
    const MovesSeen seen(s_);
    loop(many_);
    return call.taps_only ? Rows() : rows();
  }
  gpu::LaunchGraph& graph = s_.graph(tokens);
  Recorded& was = recorded_[&graph];
  const Recorded wanted{caches_->version(), s_.step().longest_keys, call.draw != nullptr,
                        call.residual != nullptr ? s_.Here(*call.residual) : nullptr};
  if (was != wanted) graph.Reset();
  was = wanted;
  const MovesSeen seen(s_, &graph);
  one_.StartFrom(wanted.from);
  graph.Run(s_.stream(), [&] {
    if (tokens == 1) return loop(one_);
    loop(many_);
    many_.Stream();  // adds what is pending
  });
  return tokens == 1 ? one_.Stream() : rows();
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

std::vector<int32_t> CudaBackend::ChooseAfter(const Rows& stream, std::span<const ChoosingRow> rows) {
  const int64_t vocab = s_.config().vocab;
  const MovesSeen seen(s_);
  const float* const h = s_.Here(stream);
  std::vector<int32_t> chosen;
  for (; !rows.empty(); rows = rows.subspan(std::min(rows.size(), kChosenTogether))) {
    const size_t count = std::min(rows.size(), kChosenTogether), full = std::bit_ceil(count);
    std::vector<int32_t> which;
    std::vector<gpu::SampleRequest> requests;
    for (const ChoosingRow& row : rows.first(count)) {
      which.push_back(static_cast<int32_t>(row.row));
      requests.push_back(RequestOf(row.draw));
    }
    which.resize(full, which.back());
    const auto m = static_cast<int64_t>(full);
    const DeviceBuffer<int32_t> from(s_.stream(), std::span<const int32_t>(which), kActivations),
        tokens(s_.stream(), m, kActivations);
    const DeviceBuffer<gpu::SampleRequest> asked(s_.stream(), std::span<const gpu::SampleRequest>(requests),
                                                 kActivations);
    const MatrixView<float> last(s_.Floats(CudaArray::kGathered, m * s_.hidden()), m, s_.hidden());
    gpu::GatherRows(s_.stream(), from.data(), MatrixView<const float>(h, stream.count(), s_.hidden()), last);
    const DeviceArray x = s_.Get(CudaArray::kNormed, m * s_.hidden(), s_.dtype());
    gpu::AddNorm(s_.stream(), last, {}, s_.FinalNorm(), x);
    const MatrixView<float> logits(s_.Floats(CudaArray::kLogits, m * vocab), m, vocab);
    s_.device()->MatMul({.x = x, .y = {logits.data, DType::kFloat32}, .m = m, .n = vocab, .k = s_.hidden()},
                        s_.HeadWeights(), /*streamed=*/true);
    if (s_.spec().logit_cap > 0) gpu::SoftCapRows(s_.stream(), s_.spec().logit_cap, logits);
    for (size_t i = 0; i < count; ++i)
      s_.Sample(logits.row(static_cast<int64_t>(i)), asked.data() + i, tokens.data() + i);
    chosen.resize(chosen.size() + count);
    gpu::CopyToHost(s_.stream(), &chosen[chosen.size() - count], tokens.data(),
                    static_cast<int64_t>(count * sizeof(int32_t)));
  }
  if (std::find(chosen.begin(), chosen.end(), -1) != chosen.end()) FailOfNaN();
  return chosen;
}

std::vector<float> CudaBackend::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const auto count = std::ssize(scored.targets);
  const int64_t vocab = s_.config().vocab;
  for (int32_t target : scored.targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
  const MovesSeen seen(s_);
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
      s_.device()->MatMul({.x = x, .y = logits, .m = m, .n = n, .k = s_.hidden()}, head.Rows(v, n, s_.hidden()));
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
