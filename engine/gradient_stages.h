// SPDX-License-Identifier: Apache-2.0
// The passes forwards and backwards of one stage of a plan, over the operations of a device. Of engine/gradients.cc;
// nobody else includes this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/gradient_ops.h"
#include "engine/gradients.h"

namespace shiftrt {

// Hands out matrices one behind another from an array, whose memory the caller has; one without an array measures how
// long it has to be.
class Arena {
 public:
  explicit Arena(float* base = nullptr) : base_(base) {}
  // Begins at 64 bytes.
  MatrixView<float> Get(int64_t rows, int64_t cols) {
    const MatrixView<float> view(base_ == nullptr ? nullptr : base_ + used_, rows, cols);
    used_ += (rows * cols + 15) / 16 * 16;
    peak_ = std::max(peak_, used_);
    return view;
  }
  int64_t mark() const { return used_; }
  void Rewind(int64_t mark) { used_ = mark; }  // what was handed out since then may be handed out again
  int64_t peak() const { return peak_; }       // floats

 private:
  float* base_;
  int64_t used_ = 0, peak_ = 0;
};

// What all stages share during a pass.
struct StagePass {
  GradientOps& ops;
  const Weights& weights;
  const LoraSettings& lora;
  bool dropout;  // false where a loss is only measured
};

// A stage, by its index in the plan, with what is trained of it.
struct TrainedStage {
  size_t index;
  const Stage& stage;
  const StageParameters& parameters;
};

enum class Direction : uint8_t { kForward, kBackward };

// Floats that a pass of a stage takes besides the streams, for a batch of so many tokens, where nothing is kept.
int64_t StageFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens, Direction direction);
// Floats of the activations that the pass forwards can keep for the pass backwards; 0 of an adapter.
int64_t KeptFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens);

struct StageMemory {
  float* scratch;  // room for StageFloats; of the pass backwards also forwards, where activations are kept
  // Room for KeptFloats, to which the pass forwards writes and which the pass backwards reads; null: nothing is kept,
  // and the pass backwards computes the activations again.
  float* kept = nullptr;
};
// h = the stream behind the stage, of which it was the stream before.
void RunForward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory, MatrixView<float> h);
// GradientEngine::Backward.
struct StreamGradient {
  MatrixView<const float> input;
  MatrixView<float> gradient;
  bool wanted;  // that of the stream before the stage
};
void RunBackward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory,
                 const StreamGradient& stream);

// Throws Error for parameters that do not fit the stage.
void CheckParameters(const Weights& weights, const TrainedStage& stage);

}  // namespace shiftrt
