// SPDX-License-Identifier: Apache-2.0
// The shapes of a model without its weights, from which estimate/ computes the work for models of any size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/weights.h"

namespace shiftrt {

struct ModelShapes {
  std::string source;  // the file that the shapes come from, for messages
  // Every tensor has its shape and the type that it would have in memory. Its data lies in memory that cannot be read:
  // a program that tries to ends at once. Fingerprint(), for one, must therefore not be called.
  std::shared_ptr<const Weights> weights;
  // The bytes in the model's files by type, such as "bfloat16" or "Q4_K".
  std::map<std::string, int64_t> stored;
};

// The shapes that a config.json describes. Every tensor has the type `dtype`, or else the type that the file names
// (dtype, torch_dtype), or else bfloat16. Throws Error as LoadConfig does, and for a type that is not float32, float16
// or bfloat16.
ModelShapes ShapesOfConfig(const std::filesystem::path& config, WeightType dtype = WeightType::kAsStored);

// The shapes of a model: of a Hugging Face directory from the headers of its files, or from its config.json if it has
// no weights; of a GGUF file from its header. Throws Error as LoadWeights does.
ModelShapes ShapesOfModel(const std::filesystem::path& model, WeightType dtype = WeightType::kAsStored);

}  // namespace shiftrt
