// SPDX-License-Identifier: Apache-2.0
// Writes the model that a plan runs as a checkpoint of its own, in the form of its family: the kept blocks numbered
// without gaps, a configuration that fits them, and the files next to them. `run --save-weights` and the exports
// use it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/files.h"
#include "runtime/progress.h"

namespace shiftrt {

// The weights with the embedding table that files of the plan have: the plan's (OutputWeights::table), or the model's.
std::shared_ptr<const Weights> AsInFile(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan);

// The weights of the plan's blocks alone, each with the tensors that it runs with, and of the plan's final norm and
// head. A head of the plan's own is not tied. A half block keeps all tensors, because a checkpoint that lacks some of a
// block's tensors is another format, which `running_halves` is for: with it, the half that does not run has none. All
// tensors are views into `weights` and into the plan's tensors.
Weights KeptWeights(const Weights& weights, const DepthPlan& plan, bool running_halves = false);

// The config.json of the model in a directory, without the mark of models/saved_config.h, or the config.json that
// corresponds to a GGUF file. Throws Error as ReadUnmarked and GgufConfig do.
nlohmann::json BaseConfig(const std::filesystem::path& model);

// BaseConfig for the blocks of the plan: KeptConfig (models/saved_config.h), with the windows of layers named in
// layer_types if they differ, and with the plan's head (tied or not) and the weights' type. `resized` receives the
// names of further lists with one entry per layer that were shortened.
nlohmann::json PlanConfig(const Model& model, const DepthPlan& plan, std::vector<std::string>* resized = nullptr);

// A tensor of a checkpoint, stored as parts that stand one below the other.
struct TensorOfParts {
  std::string name;
  std::vector<TensorView> parts;
  RowOrder order = nullptr;                        // the order of all parts' rows
  std::optional<std::vector<int64_t>> shape = {};  // that of a tensor of all experts or a number; none: the parts'
  bool transposed = false;                         // with that shape: each expert's matrix is stored (columns, rows)

  TensorView Whole() const;  // its type and shape, without data
};
// Views of every tensor of `weights` as its family's checkpoints hold it, in layer order.
std::vector<TensorOfParts> StoredTensors(const Weights& weights);

inline constexpr int64_t kOneFile = INT64_MAX;

// Writes model.safetensors. If it would have more than `shard_bytes` bytes of tensors, writes shards of at most that
// size (a larger tensor gets a shard of its own) and model.safetensors.index.json. `progress` counts MiB.
void WriteCheckpoint(std::span<const TensorOfParts> tensors, int64_t shard_bytes, AtomicDirectory& directory,
                     Progress& progress);

// Copies the files next to the weights of the model: tokenizer, generation settings, chat template, licence. From a
// GGUF file, writes the tokenizer and the chat template. Returns a sentence for the user if that tokenizer cannot be
// written as files, and then writes none; otherwise "".
[[nodiscard]] std::string CopyCompanions(const Model& model, AtomicDirectory& directory);

}  // namespace shiftrt
