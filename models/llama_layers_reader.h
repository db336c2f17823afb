// SPDX-License-Identifier: Apache-2.0
// Reads directories whose layers are those of models/llama_layers.h: the part of models/hf_lra.cc that finds the blocks
// and the adapters in them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/hf_tensors.h"
#include "models/llama_layers.h"
#include "models/weights.h"

namespace shiftrt {

class LlamaLayersReader {
 public:
  // `blocks`: the configuration of the blocks; `llama`: that of the layers, as other programs read it. Throws Error if
  // they have other numbers of layers.
  LlamaLayersReader(const std::filesystem::path& directory, std::vector<LlamaLayer> layers, const ModelConfig& blocks,
                    const ModelConfig& llama);

  // Adds to `options` where the blocks are, and which tensors are no block's.
  void AddTo(LoadOptions& options) const;
  // Maps the files and throws Error for a place that should add nothing, and does, because something changed the
  // weights: then the layers are a Llama and no longer the plan.
  void CheckEmptyPlaces();
  // An adapter of this rank, or a full one. Throws Error for a layer that does more than an adapter.
  std::shared_ptr<const Lra> Adapter(int64_t adapter, bool full, int64_t rank, bool norm);
  // The stage with `units` units of its MLP, which is one of `weights`; the stage itself if it has as many.
  BlockStage WithUnits(const std::shared_ptr<const Weights>& weights, BlockStage stage, int64_t units) const;

 private:
  std::vector<std::string> Others(size_t layer) const;
  Matrix<float> Values(const std::string& name, const std::vector<int64_t>& shape) const;
  void RequireZeros(const std::string& name, const std::vector<int64_t>& shape, int64_t first_row = 0,
                    int64_t first_column = 0);
  [[noreturn]] void Changed(const std::string& name, const std::string& has) const;

  std::filesystem::path directory_;
  std::vector<LlamaLayer> layers_;
  ModelConfig blocks_, llama_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  NamedTensors tensors_;
};

}  // namespace shiftrt
