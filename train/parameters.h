// SPDX-License-Identifier: Apache-2.0
// The trained parameters of a plan: named slices of flat float32 arrays, of values, of gradients and of two moments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/gradients.h"
#include "include/shiftrt/training.h"
#include "models/lora.h"
#include "models/plan.h"
#include "models/weights.h"
#include "train/schedule.h"

namespace shiftrt {

// The layers of `kept`, ascending, that `text` names as FinetuneSettings::layers does. Throws UsageError naming the
// field for another text, and for a layer that is not in `kept`.
std::vector<int64_t> ChooseLayers(const std::string& text, const std::vector<int64_t>& kept);

// A part of the flat arrays: one matrix or vector.
struct Slice {
  enum class Place : uint8_t { kTensor, kLoraA, kLoraB, kAdapterA, kAdapterP, kAdapterQ, kAdapterB, kHead };

  std::string name;  // "layers.3.self_attn.q_proj.lora_A", "adapters.0.P", "lm_head.weight"
  Place place = Place::kTensor;
  size_t stage = 0;   // the stage of the plan; kHead has none
  size_t tensor = 0;  // row of BlockTensors(), of kTensor, kLoraA and kLoraB
  int64_t rows = 0, cols = 0, offset = 0;

  int64_t size() const { return rows * cols; }
};

// Neighbouring numbers of the arrays that an optimizer's step treats alike.
struct ParameterRange {
  TrainedPart part = TrainedPart::kMethod;
  bool decays = false;  // shrunk by weight decay: matrices, and not norms and biases
  int64_t begin = 0, end = 0;

  bool operator==(const ParameterRange&) const = default;
};

class Parameters {
 public:
  // The settings choose the slices by their method; `head` and `adapters` add to these. A head that is tied to the
  // embedding table becomes the plan's own. kReplacement trains `layers` as kPartial does. `seed` decides the first
  // values of LoRA's factors a. Throws UsageError naming the field: a layer that the plan does not run, a projection
  // that no block has, a rank above the width of a projection, a plan without adapters, and settings that leave nothing
  // to train.
  Parameters(const Weights& weights, const DepthPlan& plan, const FinetuneSettings& settings);

  // In the order of the arrays: first those that weight decay shrinks, which are the matrices, then norms and biases.
  const std::vector<Slice>& slices() const { return slices_; }
  // All numbers of the arrays in their order, in as few ranges as there can be.
  const std::vector<ParameterRange>& ranges() const { return ranges_; }
  int64_t count() const { return count_; }
  // Bytes of values, gradients and two moments.
  int64_t bytes() const { return 4 * count_ * static_cast<int64_t>(sizeof(float)); }
  // "294912 parameters in 420 tensors (0.22% of the model's 134.5 M), 4.5 MB with gradients and moments".
  std::string Summary(const Weights& weights, const DepthPlan& plan) const;

  // The values that training starts from: what the plan runs with; factors of LoRA as PEFT initialises them, a
  // uniform within +-1 / sqrt(input), as Kaiming with a negative slope of sqrt(5) gives, and b zero.
  std::vector<float> Initial(const Weights& weights, const DepthPlan& plan) const;

  // Views of arrays of count() numbers in an engine's memory. Settings of LoRA are of step 0.
  TrainedParameters Views(const DepthPlan& plan, const DeviceMemory& values, const DeviceMemory& gradients) const;

  // The plan with the trained values: tensors of its own for blocks and head, rounded to the types of those they
  // replace, and adapters in float32. LoRA is not in it: Factors() gives that. Throws Error for a value that such a
  // type cannot hold.
  DepthPlan Tuned(const Weights& weights, const DepthPlan& plan, std::span<const float> values) const;
  // The share of the change of blocks and head that rounding has lost (RoundingError::share). `tuned` is Tuned's result
  // for the same arguments.
  double RoundingError(const Weights& weights, const DepthPlan& plan, std::span<const float> values,
                       const DepthPlan& tuned) const;
  std::optional<Lora> Factors(const DepthPlan& plan, std::span<const float> values) const;

 private:
  void AddLora(const Weights& weights, const DepthPlan& plan);
  void RefuseExperts(const BlockWeights& block, int64_t layer) const;
  void AddLayers(const Weights& weights, const DepthPlan& plan);
  void AddAdapters(const DepthPlan& plan);
  void AddTensor(const Slice& slice, bool decays);
  void LayOut();

  FinetuneSettings settings_;
  std::vector<Slice> slices_, undecayed_;
  std::vector<ParameterRange> ranges_;
  int64_t count_ = 0;
};

}  // namespace shiftrt
