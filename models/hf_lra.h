// SPDX-License-Identifier: Apache-2.0
// Directories of the format hf-lra: a Hugging Face checkpoint of the kept blocks, with the adapters as tensors of its
// layers. A block of which one half runs has the tensors of that half alone. `shiftrt export --format hf-lra` writes
// them, transformers runs them with the Python files that lie in them, and they are models for shiftrt too. So are
// directories that hold the same as a Llama (models/llama_layers.h).
// docs/export.md describes the format; export/hf_lra/*.py read it as well.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace shiftrt {

// Part of the name of every tensor of an adapter: model.layers.K.adapters_after.J.down.weight.
inline constexpr const char* kHfLraTensors = ".adapters_";

// A tensor of an adapter in float32, in the convention of PyTorch's Linear: weights (output, input), biases (output).
struct AdapterTensor {
  std::string name;
  Matrix<float> values;  // a bias is one row
  TensorView View() const;
};
// The tensors of all adapters, in the order of the plan. An adapter of rank 0 is written as one of rank 1 whose factors
// are zero.
std::vector<AdapterTensor> HfLraTensors(const DepthPlan& plan);

// The mark that MarkedHfLra() and MarkedAsLlama() (models/saved_config.h) write into the config.json of such a
// directory: a description of a plan over `weights`. `removed`: the layers of the original model that the plan lacks.
// The mark keeps the essentials of `provenance`. `as_llama` says that it is for MarkedAsLlama().
nlohmann::json HfLraMark(const Weights& weights, const DepthPlan& plan, const std::vector<int64_t>& removed,
                         const Provenance& provenance, bool as_llama = false);

// True if the config.json names this format. Throws Error for invalid JSON.
bool IsHfLra(const std::filesystem::path& directory);

// True if it does and the layers are those of a Llama (models/llama_layers.h), whose numbers are not those of blocks.
bool IsLlamaLayers(const std::filesystem::path& directory);

// `options`, and that the tensors of adapters and of blocks of which one half runs are as the config.json says. Throws
// Error for what is malformed there.
LoadOptions WithHfLra(const std::filesystem::path& directory, LoadOptions options);

// Opens the model without its tokenizer. Throws Error naming file, tensor or adapter for what is malformed, missing or
// left over.
Model OpenHfLra(const std::filesystem::path& directory, const LoadOptions& options);

}  // namespace shiftrt
