// SPDX-License-Identifier: Apache-2.0
// A model's shapes without its weights: what plans of work are made of (estimate/), for models of any size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/weights.h"

namespace shiftrt {

struct ModelShapes {
  std::string source;  // of the shapes, for people
  // Every tensor has its shape and the type that it would have in memory. Its data lies in memory that cannot be read:
  // a program that tries to ends at once. So Fingerprint(), for one, may not be called.
  std::shared_ptr<const Weights> weights;
  // Bytes in the model's files by type: "bfloat16", "Q4_K".
  std::map<std::string, int64_t> stored;
};

// Of a config.json: every tensor in the type that `dtype` says, or else the file (dtype, torch_dtype), or else in
// bfloat16. Throws Error as LoadConfig does, and for a type that is not float32, float16 or bfloat16.
ModelShapes ShapesOfConfig(const std::filesystem::path& config, LoadDType dtype = LoadDType::kAuto);

// Of a Hugging Face directory, from the headers of its files, or from its config.json alone where it has no weights; or
// of a GGUF file, from its header. Throws Error as LoadWeights does.
ModelShapes ShapesOfModel(const std::filesystem::path& model, LoadDType dtype = LoadDType::kAuto);

}  // namespace shiftrt
