// SPDX-License-Identifier: Apache-2.0
#include "hub/names.h"

namespace shiftrt {

namespace {

constexpr KnownModel kModels[] = {
    {"qwen2-0.5b", "Qwen/Qwen2-0.5B"},
    {"qwen2-1.5b", "Qwen/Qwen2-1.5B"},
    {"qwen2-1.5b-instruct", "Qwen/Qwen2-1.5B-Instruct"},
    {"qwen2-7b", "Qwen/Qwen2-7B"},
    {"qwen2-7b-instruct", "Qwen/Qwen2-7B-Instruct"},
    {"qwen1.5-7b", "Qwen/Qwen1.5-7B"},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B"},
    {"qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B"},
    {"qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct"},
    {"qwen2.5-3b", "Qwen/Qwen2.5-3B"},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B"},
    {"qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"},
    {"qwen2.5-14b", "Qwen/Qwen2.5-14B"},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B"},
    {"qwen3-1.7b", "Qwen/Qwen3-1.7B"},
    {"qwen3-4b", "Qwen/Qwen3-4B"},
    {"qwen3-8b", "Qwen/Qwen3-8B"},
    {"qwen3-14b", "Qwen/Qwen3-14B"},
    {"llama-2-7b", "meta-llama/Llama-2-7b-hf"},
    {"llama-2-7b-chat", "meta-llama/Llama-2-7b-chat-hf"},
    {"llama-2-13b", "meta-llama/Llama-2-13b-hf"},
    {"llama-3-8b", "meta-llama/Meta-Llama-3-8B"},
    {"llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"},
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B"},
    {"llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"},
    {"llama-3.2-1b", "meta-llama/Llama-3.2-1B"},
    {"llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"},
    {"llama-3.2-3b", "meta-llama/Llama-3.2-3B"},
    {"llama-3.2-3b-instruct", "meta-llama/Llama-3.2-3B-Instruct"},
    {"mistral-7b", "mistralai/Mistral-7B-v0.1"},
    {"mistral-7b-instruct", "mistralai/Mistral-7B-Instruct-v0.3"},
    {"vicuna-7b", "lmsys/vicuna-7b-v1.5"},
    {"smollm2-135m", "HuggingFaceTB/SmolLM2-135M"},
    {"smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"},
    {"smollm2-360m", "HuggingFaceTB/SmolLM2-360M"},
    {"smollm2-360m-instruct", "HuggingFaceTB/SmolLM2-360M-Instruct"},
    {"smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B"},
    {"smollm2-1.7b-instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct"},
    {"phi-3-mini", "microsoft/Phi-3-mini-4k-instruct"},
    {"gemma-2-2b", "google/gemma-2-2b"},
    {"gemma-2-2b-it", "google/gemma-2-2b-it"},
    {"gemma-2-9b", "google/gemma-2-9b"},
};

}  // namespace

std::span<const KnownModel> KnownModels() { return kModels; }

std::optional<Repository> RepositoryOfModel(std::string_view name) {
  for (const KnownModel& model : kModels)
    if (model.name == name) return ParseRepository(model.repository);
  if (name.ends_with(".gguf")) return {};  // a file that is not there
  return ParseRepository(name);
}

}  // namespace shiftrt
