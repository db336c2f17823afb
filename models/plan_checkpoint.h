// SPDX-License-Identifier: Apache-2.0
// The model that a plan runs as a checkpoint of its own, in the form of its family: the kept blocks under gapless
// numbers, a configuration that fits them, and the files beside them. `run --save-weights` and the exports write it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/files.h"
#include "runtime/progress.h"

namespace shiftrt {

// A model of the plan's blocks alone, each with the tensors that it runs with, and of the plan's final norm and head: a
// head of its own is not tied. Of a half block all tensors are kept: a checkpoint with some of a block's tensors would
// be another format. Views into `weights` and into the plan's tensors.
Weights KeptWeights(const Weights& weights, const DepthPlan& plan);

// The config.json of the model in a directory, without the mark of models/saved_config.h, or what a GGUF file says in
// its place. Throws Error as ReadUnmarked and GgufConfig do.
nlohmann::json BaseConfig(const std::filesystem::path& model);

// BaseConfig for the blocks of the plan: KeptConfig (models/saved_config.h), windows that differ between layers named
// in layer_types, whether the head is tied, and the type that the weights have. `resized` receives the names of further
// lists with one entry per layer that were shortened.
nlohmann::json PlanConfig(const Model& model, const DepthPlan& plan, std::vector<std::string>* resized = nullptr);

// A tensor of a checkpoint: its parts stand one below the other.
struct TensorOfParts {
  std::string name;
  std::vector<TensorView> parts;

  TensorView Whole() const;  // its type and shape, without data
};
// Every tensor of `weights` as its family's checkpoints hold it, in layer order: views.
std::vector<TensorOfParts> StoredTensors(const Weights& weights);

inline constexpr int64_t kOneFile = INT64_MAX;

// Writes model.safetensors or, where that would have more than `shard_bytes` bytes of tensors, shards of at most so
// many (a larger tensor has one of its own) and model.safetensors.index.json. `progress` counts MiB.
void WriteCheckpoint(std::span<const TensorOfParts> tensors, int64_t shard_bytes, AtomicDirectory& directory,
                     Progress& progress);

// Copies what lies beside the weights of the model: tokenizer, generation settings, chat template, licence. Of a GGUF
// file, writes the tokenizer and the chat template.
void CopyCompanions(const Model& model, AtomicDirectory& directory);

}  // namespace shiftrt
