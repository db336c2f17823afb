// SPDX-License-Identifier: Apache-2.0
// A checkpoint: the files that hold a model's tensors, in any supported format.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/block_tensors.h"
#include "models/families.h"
#include "models/weights.h"

namespace shiftrt {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // The tensors of a block as these files hold them, where the configuration is that of the block (ConfigOfBlock), and
  // the beginning of their names.
  virtual std::vector<CheckpointTensor> BlockTensors(const ModelConfig& of_block) const = 0;
  virtual std::string BlockPrefix(int64_t layer) const = 0;
  // The halves of a block that the files have.
  virtual Halves HalvesOf(int64_t /*layer*/) const { return Halves::kBoth; }
  // The units of a block's MLP; 0: those of the configuration.
  virtual int64_t MlpUnitsOf(int64_t /*layer*/) const { return 0; }
  // Returns a tensor of a block by its name, or one outside the blocks by the name that it has in most Hugging
  // Face checkpoints, and marks it as used. Throws Error naming file and tensor if it is missing, has another shape, or
  // has a type that cannot be loaded.
  virtual FileTensor Take(const std::string& name, const std::vector<int64_t>& shape) = 0;
  // True if the head is the embedding table: `config` says so and no head with other values is stored besides, or the
  // configuration follows from the tensors and both have the same values.
  virtual bool HasTiedHead(bool config) const { return config; }
  // Throws Error for a tensor that was not taken and is not known to be harmless, nor left to others by
  // `options`.
  virtual void RefuseLeftOver(bool tied_head, const LoadOptions& options) const = 0;
  // Objects that keep the files mapped for as long as they live.
  virtual std::vector<std::shared_ptr<const void>> Storage() const = 0;
};

// A tensor with the order of its rows and columns. A number becomes a vector of one element, and a tensor of all
// experts one matrix or vector, in which they lie one below the other.
inline FileTensor Placed(FileTensor tensor, const CheckpointTensor& of) {
  tensor.order = of.order;
  tensor.columns = of.columns;
  if (tensor.shape.empty()) tensor.shape = {1};
  if (!of.together) return tensor;
  std::vector<int64_t>& shape = tensor.shape;
  if (of.transposed) std::swap(shape[1], shape[2]);
  if (of.transposed && !tensor.packed) tensor.transposed = shape[0];  // packed rows are not transposed
  shape[1] *= shape[0];
  shape.erase(shape.begin());
  return tensor;
}

// Opens model.safetensors, or model.safetensors.index.json and its shards. Throws Error for files that contradict each
// other.
std::unique_ptr<Checkpoint> OpenSafetensors(const std::filesystem::path& directory, const ModelConfig& config);

// Opens `file`, a GGUF file or the first part of a split one (models/gguf.h).
std::unique_ptr<Checkpoint> OpenGguf(const std::filesystem::path& file, const ModelConfig& config);

// The type that the tensor gets in memory: `dtype`, or with kAsStored its type in the file, or with kExpanded that or
// bfloat16 if it is quantised. A quantised vector is expanded in any case.
DType MemoryType(const FileTensor& tensor, WeightType dtype);

// Returns `tensor` in the type that `options` asks for: a view of the mapped file if it has that type there, otherwise
// a copy that `weights` keeps. Throws Error, which begins with `where`, for a number that is too large for the type
// and, with options.check_finite, for one that is not finite. If `here` is false, the tensor belongs to another
// process: its data is not read, and in place of a copy it gets an address without memory.
TensorView LoadTensor(const std::string& where, const FileTensor& tensor, bool here, const LoadOptions& options,
                      Weights& weights);

}  // namespace shiftrt
