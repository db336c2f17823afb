// SPDX-License-Identifier: Apache-2.0
// A backend runs the layers of a depth plan on one kind of device. Decoder checks the arguments of every call and owns
// one backend; the layer loop (engine/layer_loop.h) calls it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/decoder.h"

namespace shiftrt {

// Keys and values, or the state, of every block whose mixer runs, wherever the backend that made it keeps them.
struct KvStorage {
  explicit KvStorage(int64_t capacity) : capacity(capacity) {}
  virtual ~KvStorage() = default;
  const int64_t capacity;  // positions
};

// Says how the next token is chosen.
struct Draw {
  const SamplingOptions& sampling;
  double uniform;
};

// A row of a stream, after which a token is chosen.
struct ChoosingRow {
  int64_t row = 0;
  Draw draw;
};

// A sequence of a call continues the first `past` positions of a cache of this backend.
struct Continued {
  KvStorage* cache = nullptr;
  int64_t past = 0;
};

// One pass of a batch through some stages.
struct LayerCall {
  const Batch& batch;
  std::span<const Stage> stages = {};
  const Rows* residual = nullptr;  // the stream to go on from, (tokens, hidden); null: the embeddings
  // One per sequence, none of which has a parent, or empty. Each has another cache.
  std::span<const Continued> continued = {};
  int64_t next = -1;           // the layer whose input is the stream after them, if taps receive it
  bool taps_only = false;      // nobody wants the stream after the last tap
  const Draw* draw = nullptr;  // how the token after the last row is chosen; null: it is not
  bool on_chosen = false;      // the batch's one token is the one that the last call chose, not the one it says
};

// Rows of a stream, and the token whose probability is asked of each.
struct ScoredRows {
  const Rows& stream;
  std::optional<std::span<const int64_t>> which;  // the rows of the stream; no value: all of them in order
  std::span<const int32_t> targets;
};

// The layer loop calls these bodies, for the call that the backend prepared last. They work on one residual stream
// h (tokens, hidden) in float32, and compute the update of each half of a block apart before they add it.
class Layers {
 public:
  virtual ~Layers() = default;
  // The bodies that follow run this stage, whose index is that in the call.
  virtual void BeginStage(size_t /*index*/, const Stage&) {}
  virtual void Embed() = 0;                                           // h = embeddings of the batch's tokens
  virtual void Resume(const Rows& residual) = 0;                      // h = residual, which may be h
  virtual void Attention(const BlockStage& block, int64_t slot) = 0;  // h += attention(norm(h)); slot: of the cache
  virtual void Mlp(const BlockStage& block) = 0;                      // h += mlp(norm(h))
  virtual void Adapter(const AdapterStage& adapter) = 0;              // h += lra(h)
  // The stream, everything added. Valid until the next body.
  virtual Rows Stream() = 0;
  // Returns what those halves of the block, which ran last, have added to h. Valid until the next body; asked for in
  // the order attention, MLP, both.
  virtual Rows Update(const BlockStage& block, Halves halves) = 0;
  // The input of the projection that ended the last half, as that projection saw it, in float32: the output of the
  // attention's heads, (tokens, query_dim), or the MLP's gated activation, (tokens, units). Valid until the next
  // body.
  virtual Rows Heads() = 0;
  virtual Rows Activation() = 0;
  // Chooses the token that follows the last row, as the call's draw says.
  virtual void Choose() = 0;
};

// The contracts are Decoder's.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<KvStorage> MakeCache(int64_t capacity) = 0;
  // Prepares the call and has `loop` run its layers. A backend that recorded what the same loop launches replays that
  // instead. Returns the stream; no rows with taps_only.
  virtual Rows Run(const LayerCall& call, const std::function<void(Layers&)>& loop) = 0;
  // The token of the oldest call with a draw that was not asked for yet. Throws what SampleToken throws.
  virtual int32_t Chosen() = 0;
  // Returns true if a call may be `on_chosen`: it then follows one with a draw over the same cache, before or after
  // Chosen().
  virtual bool RunsAhead() const { return false; }
  // Returns the token that follows each of these rows of a stream. Throws what SampleToken throws.
  virtual std::vector<int32_t> ChooseAfter(const Rows& stream, std::span<const ChoosingRow> rows) = 0;
  virtual Matrix<float> Logits(const Rows& residual) = 0;
  virtual std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) = 0;
};

struct BackendSetup {
  Context context;
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  bool tapped = false;  // so that every call runs the loop
};
std::unique_ptr<Backend> MakeCpuBackend(const BackendSetup& setup);
// Throws Error where this build or this machine has no CUDA, and for a model that the GPU kernels do not take.
std::unique_ptr<Backend> MakeCudaBackend(const BackendSetup& setup);

// Throws Error for a model that the context's device neither runs nor trains.
void CheckDeviceTakes(const Context& context, const Weights& weights);

// Throws Error unless the stages are in order, within the model, and of its shapes but for the units of an MLP, which
// all tensors of that MLP have.
void CheckStages(const Weights& weights, std::span<const Stage> stages);
// Throws Error unless every sequence, with what it continues, fits the model's context.
void CheckLengths(const ModelConfig& config, const Batch& batch);

// The places of the sequences of a call.
struct CallLayout {
  struct Sequence {
    int64_t begin = 0, count = 0;  // its tokens
    int64_t past = 0;              // positions before them, its parents' or its cache's
    int64_t joined = -1;           // with a parent: its range of joined_rows, past + count long, begins here
    // The tokens of the longest sequence that has the same first one, or the capacity of its cache.
    int64_t reach = 0;
    int64_t generation = 0;  // the number of its parents: of its own, that one's, and so on
    bool is_parent = false;
  };
  std::vector<Sequence> sequences;
  // The tokens whose keys the sequences with a parent see, in order, one sequence after another.
  std::vector<int64_t> joined_rows;
};
CallLayout LayOut(const LayerCall& call);

}  // namespace shiftrt
