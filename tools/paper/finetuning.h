// SPDX-License-Identifier: Apache-2.0
// Presets of `finetune`: the paper's experiments with fine-tuning, and recovery; and the paper's own numbers.
#pragma once

#include <string>
#include <vector>

#include "include/shiftrt/finetune.h"

namespace shiftrt {

struct FinetunePreset {
  const char* name;
  const char* summary;  // one line for --help
  FinetuneSettings settings;
  std::vector<std::string> adapters = {"trainable"};  // "frozen", "trainable": one training for each
};
// The paper says neither its LoRA's rank nor its schedule, warm-up and weight decay: those are the command's.
const std::vector<FinetunePreset>& FinetunePresets();
// Throws UsageError listing the presets.
const FinetunePreset& FindFinetunePreset(const std::string& name);

// A mean zero-shot accuracy in percent after fine-tuning. All models were pruned by a quarter in reverse order.
struct PaperFinetuning {
  std::string model;   // as PaperModel() (tools/paper/paper.h) names it
  std::string preset;  // the preset whose table has the number
  std::string label;   // "LoRA", "LoRA + LRA", "frozen", "trainable"
  double accuracy;
};
// Lines of the preset's table for one model; none for a model that the paper does not have.
std::vector<PaperFinetuning> PaperFinetuningNumbers(const std::string& model, const std::string& preset);

}  // namespace shiftrt
