// SPDX-License-Identifier: Apache-2.0
// The paper's experiments with fine-tuning as settings of `finetune`, and the paper's own numbers.
#pragma once

#include <string>
#include <vector>

#include "train/parameters.h"

namespace shiftrt {

struct FinetunePreset {
  const char* name;
  const char* summary;  // one line for --help
  Method method = Method::kLora;
  std::vector<std::string> adapters = {"trainable"};  // "frozen", "trainable": one training for each
  bool head = false;
  const char* layers = "last:3";  // of Method::kPartial
  // Otherwise the settings that the paper gives for its own experiments.
  const char* text = "c4";  // a known text
  int64_t samples = 10000;  // 0: all
  int64_t validation = 200, length = 512, batch = 25, epochs = 1;
  double rate = 3e-5;
};
// The paper says neither its LoRA's rank nor its schedule, warm-up and weight decay: those are the command's.
const std::vector<FinetunePreset>& FinetunePresets();
// Throws UsageError listing the presets.
const FinetunePreset& FindFinetunePreset(const std::string& name);

// A mean zero-shot accuracy in percent after fine-tuning. All models were pruned by a quarter in reverse order.
struct PaperFinetuning {
  std::string model;   // as PaperModel() (tools/paper/paper.h) names it
  std::string preset;  // whose table it is of
  std::string label;   // "LoRA", "LoRA + LRA", "frozen", "trainable"
  double accuracy;
};
// Lines of the preset's table for one model; none for a model that the paper does not have.
std::vector<PaperFinetuning> PaperFinetuningNumbers(const std::string& model, const std::string& preset);

}  // namespace shiftrt
