// SPDX-License-Identifier: Apache-2.0
// The one layer loop: prefill, decode, scoring and calibration all run through Decoder::Forward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/rows.h"
#include "engine/sampling.h"
#include "models/plan.h"
#include "models/weights.h"
#include "runtime/context.h"

namespace shiftrt {

// Sequences laid end to end: sequence s is tokens[offsets[s]] .. tokens[offsets[s + 1]]. No padding exists. A sequence
// with a parent continues it, that one's own parents included: a prefix that several share is computed once.
struct Batch {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> parents;  // for each sequence an earlier one, or -1

  void Add(std::span<const int32_t> sequence, int64_t parent = -1);
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

// The points of a block stage that can be tapped, (tokens, hidden) unless noted, in the order in which sinks receive
// them.
enum class TapPoint {
  kInput,       // residual stream before the block
  kHeads,       // the output of the attention's heads, (tokens, query_dim), which its output projection reads
  kAttention,   // the attention's output before it is added
  kActivation,  // the gated activation of the MLP, (tokens, units): the input of its down projection
  kMlp,         // the MLP's output before it is added
  kUpdate,      // the update of the block: the sum of the outputs of those halves that run
  kOutput,      // residual stream after the block; no final norm
};

// Calls `sink` with rows that are valid during the call only, and with the batch they are of. `layer` counts blocks of
// the original model; for kInput of layer L (one past the last) the stream that the final norm reads. Where a plan runs
// the halves of a layer as two stages, each of them calls the sink.
struct Tap {
  int64_t layer = 0;
  TapPoint point = TapPoint::kInput;
  std::function<void(const Rows& rows, const Batch& batch)> sink;
};

struct KvStorage;

// Keys and values of every block of one plan whose attention runs, for one sequence, and the states of gated delta
// networks. Removed blocks and attentions take no memory.
// The first decoder that appends to the cache allocates it on its own device; only that decoder may continue it: no
// other one has its memory.
class KvCache {
 public:
  KvCache(const ModelConfig& config, const DepthPlan& plan, int64_t capacity);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  // Forgets all but the first `size` positions, and returns how many remain: none, if it is recurrent and has to forget
  // any.
  int64_t Truncate(int64_t size);
  // True if a gated delta network runs, of which the cache has the last state and no earlier one.
  bool recurrent() const { return recurrent_; }

 private:
  friend class Decoder;
  int64_t slots_ = 0, kv_dim_ = 0;
  bool recurrent_ = false;
  std::unique_ptr<KvStorage> storage_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

// One of several sequences that are continued together: `tokens`, at least one, are appended to `cache`. With a choice,
// the token after the last of them is chosen.
struct CachedTokens {
  struct Choice {
    SamplingOptions sampling;
    double uniform = 0;  // a draw from [0, 1)
  };
  std::span<const int32_t> tokens;
  KvCache* cache = nullptr;
  std::optional<Choice> choice = {};
};

// Runs the stages of a plan. If the model is split over processes (models/split.h), the processes of a group make the
// same calls, in the same order, over the same batches, and each runs its own stages. Only the last process gets the
// stream after all stages; the others get the stream after their own, and log-probabilities of 0. They may be ahead
// of the last one by some batches.
class Decoder {
 public:
  // A block with adapters (Weights::adapters) runs with them: its input is the stream before them, and its update has
  // theirs. Throws Error for taps on layers, or on halves of them, that the plan does not run. Weights and adapters are
  // shared, not copied; several threads may make decoders over the same weights. A decoder is for one thread at a time,
  // and those over the same weights on the same GPU are for one thread together.
  Decoder(const Context& context, std::shared_ptr<const Weights> weights, DepthPlan plan, std::vector<Tap> taps = {});
  ~Decoder();
  Decoder(Decoder&&) noexcept;

  // The residual stream after the last stage, (batch.size(), hidden) float32, before the final norm, on the decoder's
  // device. Valid until the next call. With `taps_only` stops after the last tapped layer and returns no rows.
  // Positions count from 0 in every sequence, and on from its parent's last in one that has a parent.
  Rows Forward(const Batch& batch, bool taps_only = false);
  // Continues from a kept stream: runs `stages`, which need not be the plan's, on `residual` (batch.size(), hidden),
  // which may be the whole result of the last call. A GPU's decoder copies rows of the host over first. Taps on the
  // stages' blocks fire; throws Error for a tap on a half that they leave out. Valid until the next call. `taps_only`
  // as in Forward().
  Rows Resume(const Batch& batch, const Rows& residual, std::span<const Stage> stages, bool taps_only = false);
  // One sequence that continues `cache`; its tokens are appended. Throws Error when the cache is full.
  Rows Forward(std::span<const int32_t> tokens, KvCache& cache);

  // The token that follows: the same call, and the logits of its last row sampled where they are, so that a GPU hands
  // over no more than an id. Takes at least one token; throws what SampleToken throws (engine/sampling.h).
  int32_t NextToken(std::span<const int32_t> tokens, KvCache& cache, const SamplingOptions& sampling, double uniform);

  // The same in steps, so that a GPU need not wait for the host between two tokens. StartToken() starts what
  // NextToken() does. StartNext() starts it on the token that was started last, before anybody knows which it is;
  // false, and nothing is started, where the cache is full or this decoder cannot (on a CPU, with taps, of a split
  // model). TakeToken() gives the token of the oldest start. At most two may be open, and StartToken() forgets those.
  void StartToken(std::span<const int32_t> tokens, KvCache& cache, const SamplingOptions& sampling, double uniform);
  bool StartNext(KvCache& cache, const SamplingOptions& sampling, double uniform);
  int32_t TakeToken();

  // Continues several sequences, each in a cache of its own, and returns the token chosen for each, -1 where none is
  // asked for. The weights are read once for all of them, so that the result may differ from NextToken()'s by rounding.
  // On a GPU, if each sequence appends one token and they are at most 32, what follows a sequence has bits that depend
  // on the others only through the class of their number: 2, up to 4, 8, 16 or 32. A model that is split over processes
  // continues one after the other.
  std::vector<int32_t> NextTokens(std::span<const CachedTokens> sequences);

  // Logits (rows, vocab) of residual rows: final norm, then head.
  Matrix<float> Logits(const Rows& residual);
  // log p(targets[t]) of each residual row, natural logarithm; see kernels/logprob.h. Throws Error unless there is one
  // target per row, and one place in `argmax` where it is not empty.
  std::vector<float> LogProbs(const Rows& residual, std::span<const int32_t> targets, std::span<int32_t> argmax = {});
  // The same of the rows `which` of `stream`, in their order; rows are gathered where they are.
  std::vector<float> LogProbs(const Rows& stream, std::span<const int64_t> which, std::span<const int32_t> targets,
                              std::span<int32_t> argmax = {});

  // The context that the decoder was made with.
  const Context& context() const;
  const Weights& weights() const;
  const ModelConfig& config() const { return weights().config; }
  const DepthPlan& plan() const;
  // DepthPlan's counts, of this plan over these weights.
  int64_t Parameters() const { return plan().Parameters(weights()); }
  int64_t BytesPerToken() const { return plan().BytesPerToken(weights()); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt
