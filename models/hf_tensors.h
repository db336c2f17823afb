// SPDX-License-Identifier: Apache-2.0
// Tensors of Hugging Face directories that are read by themselves, apart from the weights of a model: adapters, factors
// of LoRA, and places that must hold zeros.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/safetensors.h"
#include "runtime/tensor.h"

namespace shiftrt {

using NamedTensors = std::map<std::string, TensorView, std::less<>>;

// All tensors of a Hugging Face directory by name. `files` receives the objects that keep them mapped.
NamedTensors HfTensors(const std::filesystem::path& directory, std::vector<std::unique_ptr<SafetensorsFile>>& files);

// The numbers of tensor `name` of this shape; a vector becomes one row. Throws Error, with `file` in front, for a
// tensor that is missing, has another shape or is not of float32, float16 or bfloat16, and for a number that is not
// finite.
Matrix<float> FloatsOf(const std::string& file, const NamedTensors& tensors, const std::string& name,
                       const std::vector<int64_t>& shape);

}  // namespace shiftrt
