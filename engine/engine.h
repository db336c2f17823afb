// What runs a depth plan on one kind of device. Decoder checks the arguments of every call and owns one engine; an
// engine has the layer loop and the buffers.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decoder.h"

namespace shiftrt {

// Keys and values of every block stage, wherever the engine that made it keeps them.
struct KvStorage {
  virtual ~KvStorage() = default;
};

class TapSet {
 public:
  explicit TapSet(std::vector<Tap> taps) : taps_(std::move(taps)) {}
  int64_t size() const { return static_cast<int64_t>(taps_.size()); }
  bool Has(int64_t layer, TapPoint point) const {
    return std::any_of(taps_.begin(), taps_.end(),
                       [&](const Tap& tap) { return tap.layer == layer && tap.point == point; });
  }
  // Returns how many taps heard it.
  int64_t Fire(int64_t layer, TapPoint point, const Rows& rows, const Batch& batch) const {
    int64_t heard = 0;
    for (const Tap& tap : taps_) {
      if (tap.layer != layer || tap.point != point) continue;
      tap.sink(rows, batch);
      ++heard;
    }
    return heard;
  }

 private:
  std::vector<Tap> taps_;
};

struct EngineSetup {
  Context context;
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  std::vector<Tap> taps;
};

struct EngineCall {
  const Batch& batch;
  std::span<const Stage> stages;
  const Rows* residual = nullptr;  // the stream to go on from, (tokens, hidden); null: the embeddings
  int64_t past = 0;                // positions in `cache` already; 0 without one
  KvStorage* cache = nullptr;      // of this engine; there is then one sequence
  bool taps_only = false;
};

// Rows of a stream, and the token whose probability is asked of each.
struct ScoredRows {
  const Rows& stream;
  std::optional<std::span<const int64_t>> which;  // of its rows; all of them in order where it says nothing
  std::span<const int32_t> targets;
};

// Where the sequences of a call stand.
struct CallLayout {
  struct Sequence {
    int64_t begin = 0, count = 0;  // its tokens
    int64_t past = 0;              // positions before them, its parents' or the cache's
    int64_t joined = -1;           // with a parent: its range of joined_rows, past + count long, begins here
  };
  std::vector<Sequence> sequences;
  // Of sequences with a parent, one behind another: the tokens whose keys they see, in order.
  std::vector<int64_t> joined_rows;
};
CallLayout LayOut(const EngineCall& call);

// The contracts are Decoder's.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::unique_ptr<KvStorage> MakeCache(int64_t capacity) = 0;
  virtual Rows Run(const EngineCall& call) = 0;
  virtual int32_t RunAndSample(const EngineCall& call, const SamplingOptions& sampling, double uniform) = 0;
  virtual Matrix<float> Logits(const Rows& residual) = 0;
  virtual std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) = 0;
};

std::unique_ptr<Engine> MakeCpuEngine(const EngineSetup& setup);
// Throws Error where this build or this machine has no CUDA, and for a model that the GPU kernels do not take.
std::unique_ptr<Engine> MakeCudaEngine(const EngineSetup& setup);

}  // namespace shiftrt
