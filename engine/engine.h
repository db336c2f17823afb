// What runs a depth plan on one kind of device. Decoder checks the arguments of every call and owns one engine; an
// engine has the layer loop and the buffers.
#pragma once

#include <algorithm>
#include <memory>
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
  int64_t Fire(int64_t layer, TapPoint point, const Rows& rows) const {
    int64_t heard = 0;
    for (const Tap& tap : taps_) {
      if (tap.layer != layer || tap.point != point) continue;
      tap.sink(rows);
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
  std::span<const int32_t> tokens;
  std::span<const int64_t> offsets, parents;  // of the sequences, as in Batch
  std::span<const Stage> stages;
  MatrixView<const float> residual = {};  // the stream to go on from, (tokens, hidden); without data: the embeddings
  int64_t past = 0;                       // positions in `cache` already; 0 without one
  KvStorage* cache = nullptr;             // of this engine; there is then one sequence
  bool taps_only = false;
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
  virtual MatrixView<const float> Run(const EngineCall& call) = 0;
  virtual int32_t RunAndSample(const EngineCall& call, const SamplingOptions& sampling, double uniform) = 0;
  virtual Matrix<float> Logits(MatrixView<const float> residual) = 0;
  virtual std::vector<float> LogProbs(MatrixView<const float> residual, std::span<const int32_t> targets,
                                      std::span<int32_t> argmax) = 0;
};

std::unique_ptr<Engine> MakeCpuEngine(const EngineSetup& setup);
// Throws Error where this build or this machine has no CUDA, and for a model that the GPU kernels do not take.
std::unique_ptr<Engine> MakeCudaEngine(const EngineSetup& setup);

}  // namespace shiftrt
