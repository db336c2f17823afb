// SPDX-License-Identifier: Apache-2.0
// The files that hold a model's tensors, of whatever format.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/weights.h"

namespace shiftrt {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // The tensor that the checkpoints of the family in Hugging Face's format call `name`. Marks it as used. Throws Error
  // naming file and tensor where it is missing, or of another shape, or of a type that cannot be loaded.
  virtual FileTensor Take(const std::string& name, const std::vector<int64_t>& shape) = 0;
  // Throws Error for a tensor that was not taken and is not known to be harmless. `adapters_beside`: as LoadOptions.
  virtual void RefuseLeftOver(bool tied_head, bool adapters_beside) const = 0;
  // What keeps the files mapped.
  virtual std::vector<std::shared_ptr<const void>> Storage() const = 0;
};

// model.safetensors, or model.safetensors.index.json and its shards. Throws Error for files that contradict each other.
std::unique_ptr<Checkpoint> OpenSafetensors(const std::filesystem::path& directory);

// `file`, a GGUF file or the first part of one: models/gguf.h.
std::unique_ptr<Checkpoint> OpenGguf(const std::filesystem::path& file, const ModelConfig& config);

// The type that the tensor has in memory: `dtype`, or where that is kAuto its own, but bfloat16 for a quantised one.
DType MemoryType(const FileTensor& tensor, LoadDType dtype);

// `tensor` in memory, in the type that `options` asks for: where it is mapped, if it lies there in that type, else a
// copy that `weights` keeps. Throws Error, which begins with `where`, for a number that is too large for the type and,
// with options.check_finite, for one that is not finite. Not `here`: of another process; nothing of it is looked at,
// and a copy is an address without memory.
TensorView LoadTensor(const std::string& where, const FileTensor& tensor, bool here, const LoadOptions& options,
                      Weights& weights);

}  // namespace shiftrt
