// SPDX-License-Identifier: Apache-2.0
// The format hf for plans with half blocks, adapters on the normed stream, or MLPs of several widths: a checkpoint of
// LlamaForCausalLM with the layers of models/llama_layers.h.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "export/formats.h"
#include "models/plan_checkpoint.h"

namespace shiftrt {

// The reason why the blocks of such a model are not those of a Llama, as the end of a sentence; "" if they are.
std::string WhyNoLlamaLayers(const ModelConfig& config);

struct LlamaCheckpoint {                             // NOLINT(bugprone-exception-escape): of the JSON library
  nlohmann::json config;                             // with the mark of models/saved_config.h
  std::vector<TensorOfParts> tensors;                // all that the file has
  std::vector<std::shared_ptr<const void>> storage;  // keeps the tensors that were made
  std::vector<std::string> notes;
};
// The job's plan as such a checkpoint. The weights that are zeros have the type of the model, adapters are float32.
LlamaCheckpoint MakeLlamaCheckpoint(const ExportJob& job);

// Returns the number of attentions and MLPs of the layers that are zeros.
int64_t EmptyPlaces(const DepthPlan& plan);

}  // namespace shiftrt
