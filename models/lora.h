// SPDX-License-Identifier: Apache-2.0
// LoRA factors (Hu et al., "LoRA", 2021): a projection W is replaced by W + scale b a, with b a of low rank.
// Fine-tuning trains the factors (LoraParameters in engine/parameters.h). Afterwards a plan runs W + scale b a, merged
// into a tensor of its own, and a saved directory keeps the factors next to it (docs/dev/formats.md).
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
  int64_t layer = 0;                    // the block's layer in the original model
  const BlockTensor* tensor = nullptr;  // a row of BlockTensors() that is a matrix
  Matrix<float> a, b;                   // (rank, input), (output, rank)
};

// The change of the embedding table or the head, (vocab, hidden): `whole` or, if that is empty, the model's table, plus
// scale b a.
struct LoraTable {
  Matrix<float> whole = {};
  Matrix<float> a = {}, b = {};  // (rank, hidden), (vocab, rank), or empty
  double scale = 0;

  bool empty() const { return whole.empty() && a.empty(); }
};

struct Lora {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<LoraFactors> factors;  // any order; one per layer and tensor
  // Only of adapters that other programs have made. `one_table`: the head is the embedding table after the change, too.
  LoraTable embedding = {}, head = {};
  bool one_table = false;

  double scale() const { return alpha / static_cast<double>(rank); }
};

// Returns the plan in which every projection W that has factors is replaced by W + scale b a, computed in float32 and
// rounded to the type of W, and the head likewise. The embedding table is no tensor of a plan (models/lora_tables.h).
// Throws Error for a layer that the plan does not run, for a projection of a half that it does not run, for factors of
// another shape, and for a result that the type cannot hold.
DepthPlan MergeLora(const Weights& weights, const DepthPlan& plan, const Lora& lora);
// The share of the change that rounding has lost: |merged - (W + scale b a)| / |scale b a| over all factors, in the
// Frobenius norm. `merged` is MergeLora's result for the same arguments. 0 if there is no change.
double MergeError(const Weights& weights, const DepthPlan& plan, const Lora& lora, const DepthPlan& merged);

// True if both have the same factors, scaled alike, so that merging the second again would only repeat the change.
bool SameChange(const Lora& first, const Lora& second);

// 64-bit hash of the factors, and of rank and alpha, as 16 hexadecimal digits.
std::string Checksum(const Lora& lora);

// The subdirectory of a saved model that holds its factors, and the files in it, which are those of PEFT.
inline constexpr const char* kLoraDirectory = "lora";
inline constexpr const char* kLoraTensors = "adapter_model.safetensors";
inline constexpr const char* kLoraConfig = "adapter_config.json";

// Writes the factors into `out` as DIR/lora, in the format of PEFT (huggingface/peft). Layers are numbered as in a
// checkpoint that has only the plan's blocks. `base`: the model that the factors belong to; "" if no directory holds it
// yet.
void WriteLora(const Lora& lora, const ModelConfig& model, const DepthPlan& plan, const std::string& base,
               AtomicDirectory& out);

// Reads the factors in `directory`, in PEFT's format, for the blocks of `plan`. Throws Error naming file, key or tensor
// for what is malformed, missing or left over, of another shape or not finite, and for settings of PEFT that change how
// the factors are applied (DoRA, biases, ...). Where modules have ranks or scales of their own, all factors get the
// largest rank, with zeros, and a scale of 1.
Lora ReadLora(const std::filesystem::path& directory, const Weights& weights, const DepthPlan& plan);

}  // namespace shiftrt
