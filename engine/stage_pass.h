// SPDX-License-Identifier: Apache-2.0
// The arguments and the memory of a pass of a stage, forwards or backwards (engine/block_pass.h, engine/adapter.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/ops.h"
#include "engine/parameters.h"

namespace shiftrt {

// Hands out matrices one after another from a dense array that the caller owns. An arena without an array measures how
// long the array has to be, and hands out empty matrices.
class Arena {
 public:
  explicit Arena(DeviceMatrix<float> memory = {}) : memory_(memory) {}
  // Begins at 64 bytes.
  DeviceMatrix<float> Get(int64_t rows, int64_t cols) {
    const DeviceMatrix<float> view = memory_.empty() ? DeviceMatrix<float>() : memory_.Part(used_, rows, cols);
    used_ += (rows * cols + 15) / 16 * 16;
    peak_ = std::max(peak_, used_);
    return view;
  }
  int64_t mark() const { return used_; }
  void Rewind(int64_t mark) { used_ = mark; }  // memory handed out since then may be handed out again
  int64_t peak() const { return peak_; }       // floats

 private:
  DeviceMatrix<float> memory_;
  int64_t used_ = 0, peak_ = 0;
};

// The two arrays of a stage. The activations that the backward pass reads lie in `kept`, everything else in `scratch`;
// both may be the same arena.
struct Arenas {
  Arena& kept;
  Arena& scratch;
};

// All stages share this during a pass.
struct StagePass {
  Ops& ops;
  const Weights& weights;
  const LoraSettings& lora;
  bool dropout;  // false where a loss is only measured, and in inference
};

// A stage, by its index in the plan, with what is trained of it.
struct TrainedStage {
  size_t index;
  const Stage& stage;
  const StageParameters& parameters;
};

// Which of a stage's buffers have memory of their own, rather than memory that is used again within the stage.
enum class Keeping : uint8_t {
  kNothing,      // a forward pass alone
  kUpdates,      // a forward pass whose updates are tapped
  kActivations,  // the backward pass reads the activations
};

// The gradient of a stage's stream. `input` is the stream before the stage. `gradient` holds that of the stream after
// the stage, and becomes that of the stream before it if it is `wanted`, and undefined otherwise.
struct StreamGradient {
  DeviceMatrix<const float> input;
  DeviceMatrix<float> gradient;
  bool wanted;
};

}  // namespace shiftrt
