// SPDX-License-Identifier: Apache-2.0
// LoRA factors (Hu et al., "LoRA", 2021): a projection W is replaced by W + scale b a, with b a of low rank. Fine-tuning
// trains the factors (LoraParameters in engine/gradients.h). Afterwards a plan runs W + scale b a, merged into a tensor
// of its own, and a saved directory keeps the factors beside it (docs/formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/block_tensors.h"
#include "models/plan.h"
#include "models/weights.h"
#include "runtime/files.h"

namespace shiftrt {

// The factors of one projection.
struct LoraFactors {
  int64_t layer = 0;                    // of the block, as BlockStage counts
  const BlockTensor* tensor = nullptr;  // a row of BlockTensors() that is a matrix
  Matrix<float> a, b;                   // (rank, input), (output, rank)
};

struct Lora {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<LoraFactors> factors;  // any order; one per layer and tensor

  double scale() const { return alpha / static_cast<double>(rank); }
};

// The plan with W + scale b a, computed in float32 and rounded to the type of W, in place of W of every projection that
// has factors; W is what the plan runs with. Throws Error for a layer that the plan does not run, or whose half with
// this projection it does not run, for factors of another shape, and for a result that the type cannot hold.
DepthPlan MergeLora(const Weights& weights, const DepthPlan& plan, const Lora& lora);
// What the rounding has lost of the change: |merged - (W + scale b a)| / |scale b a| over all factors, in the Frobenius
// norm. `merged` is MergeLora's result for the same arguments. 0 where there is no change.
double MergeError(const Weights& weights, const DepthPlan& plan, const Lora& lora, const DepthPlan& merged);

// The directory of a saved model in which its factors lie, and the files in it: those of PEFT.
inline constexpr const char* kLoraDirectory = "lora";
inline constexpr const char* kLoraTensors = "adapter_model.safetensors";
inline constexpr const char* kLoraConfig = "adapter_config.json";

// Writes the factors into `out` as DIR/lora, the format of PEFT (huggingface/peft), with layers counted as in a
// checkpoint of the plan's blocks alone. `base`: the model that they belong to; "" where no directory holds it yet.
void WriteLora(const Lora& lora, const DepthPlan& plan, const std::string& base, AtomicDirectory& out);

// The factors in `directory`, in PEFT's format, for the blocks of `plan`. Throws Error naming file, key or tensor for
// what is malformed, missing or left over, of another shape, not finite, and for settings of PEFT that change what the
// factors mean (DoRA, biases, other ranks per module, ...).
Lora ReadLora(const std::filesystem::path& directory, const ModelConfig& config, const DepthPlan& plan);

}  // namespace shiftrt
