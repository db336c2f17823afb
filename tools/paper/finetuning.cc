// SPDX-License-Identifier: Apache-2.0
#include "tools/paper/finetuning.h"

#include "runtime/words.h"

namespace shiftrt {

namespace {

struct FinetuningRow {
  const char *model, *preset, *label;
  double accuracy;
};
// Tables "main_ft_reverse_lora", "main_ft_reverse_partial", "llama_comparison" (a mean over nine suites) and
// "train_vs_freeze".
constexpr FinetuningRow kFinetuningRows[] = {
    {"Qwen2-1.5B", "paper-lora", "LoRA", 47.53},
    {"Qwen2-1.5B", "paper-lora", "LoRA + LRA", 48.94},
    {"Qwen1.5-7B", "paper-lora", "LoRA", 55.51},
    {"Qwen1.5-7B", "paper-lora", "LoRA + LRA", 56.28},
    {"Llama-3.1-8B-Instruct", "paper-lora", "LoRA", 59.98},
    {"Llama-3.1-8B-Instruct", "paper-lora", "LoRA + LRA", 61.12},
    {"Vicuna-7B-v1.5", "paper-lora", "LoRA", 59.38},
    {"Vicuna-7B-v1.5", "paper-lora", "LoRA + LRA", 60.10},
    {"Qwen2-1.5B", "paper-partial", "partial", 46.97},
    {"Qwen2-1.5B", "paper-partial", "partial + LRA", 46.39},
    {"Qwen1.5-7B", "paper-partial", "partial", 53.21},
    {"Qwen1.5-7B", "paper-partial", "partial + LRA", 54.19},
    {"Llama-3.1-8B-Instruct", "paper-partial", "partial", 56.62},
    {"Llama-3.1-8B-Instruct", "paper-partial", "partial + LRA", 59.20},
    {"Vicuna-7B-v1.5", "paper-partial", "partial", 56.19},
    {"Vicuna-7B-v1.5", "paper-partial", "partial + LRA", 58.16},
    {"Llama-3.1-8B-Instruct", "paper-navigation", "partial, nine suites", 59.08},
    {"Llama-3.1-8B-Instruct", "paper-navigation", "partial + LRA, nine suites", 59.54},
    {"Qwen2-1.5B", "paper-frozen-trainable", "frozen", 47.98},
    {"Qwen2-1.5B", "paper-frozen-trainable", "trainable", 48.94},
    {"Qwen1.5-7B", "paper-frozen-trainable", "frozen", 56.08},
    {"Qwen1.5-7B", "paper-frozen-trainable", "trainable", 56.28},
    {"Llama-3.1-8B-Instruct", "paper-frozen-trainable", "frozen", 60.32},
    {"Llama-3.1-8B-Instruct", "paper-frozen-trainable", "trainable", 61.12},
};

}  // namespace

const std::vector<FinetunePreset>& FinetunePresets() {
  static const std::vector<FinetunePreset> presets = [] {
    FinetuneSettings lora;  // those that the paper gives for its own experiments
    lora.text = "c4";
    lora.samples = 10000;
    lora.batch = 25;
    lora.rate = 3e-5;
    FinetuneSettings partial = lora;
    partial.method = Method::kPartial;
    partial.head = true;
    FinetuneSettings navigation = partial;
    navigation.text = "alpaca";
    navigation.samples = 0;
    navigation.length = 256;
    navigation.batch = 64;
    navigation.epochs = 2;
    navigation.rate = 1e-5;
    return std::vector<FinetunePreset>{
        {"paper-lora", "LoRA on C4, adapters trainable", lora},
        {"paper-partial", "head and last three kept layers on C4, adapters trainable", partial},
        {"paper-navigation", "head and last three kept layers on Alpaca-Cleaned, as Navigation LLM does", navigation},
        {"paper-frozen-trainable", "LoRA on C4 twice: adapters frozen, and trainable", lora, {"frozen", "trainable"}},
        {"recover", "training of all kept blocks and adapters, as `run --recover`",
         RecoverySettings(ParseTrainingBudget("30min"))},
    };
  }();
  return presets;
}

const FinetunePreset& FindFinetunePreset(const std::string& name) {
  return RowNamed(FinetunePresets(), name, "preset", "unknown preset \"{}\"");
}

std::vector<PaperFinetuning> PaperFinetuningNumbers(const std::string& model, const std::string& preset) {
  std::vector<PaperFinetuning> numbers;
  for (const FinetuningRow& row : kFinetuningRows)
    if (model == row.model && preset == row.preset) numbers.push_back({row.model, row.preset, row.label, row.accuracy});
  return numbers;
}

}  // namespace shiftrt
