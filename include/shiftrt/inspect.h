// SPDX-License-Identifier: Apache-2.0
/// \file
/// Descriptions of models: their sizes, what they run, and the scores by which layers are chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/blocks.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/recipe.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// Bytes of the tensors of a model, by their purpose.
struct TensorBytes {
  int64_t embedding = 0;  ///< the table of token embeddings
  int64_t attention = 0;  ///< the attention of the blocks that run
  int64_t mlp = 0;        ///< their MLPs
  int64_t norms = 0;      ///< the norms of the residual stream
  int64_t head = 0;       ///< the head; 0 if it is the embedding table
};

/// Tensors that a model runs in place of those of the original model.
struct OwnTensors {
  int64_t layer = 0;               ///< their block, counted from 0
  std::vector<std::string> names;  ///< names within the block, such as "mlp.down_proj"
};

/// Tensors of one type in the files of a model.
struct StoredType {
  std::string name;     ///< such as "bfloat16", or "Q4_K" of a GGUF file
  int64_t tensors = 0;  ///< how many there are
  int64_t bytes = 0;    ///< bytes that they take in the files
};

/// An adapter in the place of removed blocks.
struct AdapterDescription {
  std::vector<BlockPart> parts;  ///< blocks and halves in whose place it stands, ascending
  int64_t rank = 0;              ///< its rank; the hidden size for a full matrix
  int64_t parameters = 0;        ///< numbers that it consists of
};

/// LoRA factors that are merged into the projections of a model.
struct LoraDescription {
  int64_t rank = 0;         ///< rank of every pair of factors
  double alpha = 0;         ///< the change of a projection is alpha / rank times the product of its factors
  int64_t projections = 0;  ///< projections that are changed
};

/// Mixtures of experts in the place of MLPs.
struct MixtureDescription {
  int64_t layers = 0;        ///< layers of the original model that have one
  int64_t experts = 0;       ///< experts of a layer
  int64_t active = 0;        ///< experts that each token runs through
  int64_t units = 0;         ///< width of an expert
  int64_t shared_units = 0;  ///< width of the expert that all tokens run through; 0: there is none
};

/// Says what a model consists of, besides what LanguageModel tells.
struct ModelDescription {
  std::string family;                         ///< model_type of config.json, such as "llama"
  int64_t intermediate = 0;                   ///< width of the MLPs
  int64_t heads = 0;                          ///< attention heads of a block
  int64_t kv_heads = 0;                       ///< key-value heads of a block
  int64_t head_dim = 0;                       ///< width of an attention head
  int64_t recurrent = 0;                      ///< blocks that run another mixer and no attention
  std::string mixers;                         ///< what those run: "gated delta networks" or "short convolutions"
  bool tied_head = false;                     ///< the head is the embedding table
  std::optional<MixtureDescription> mixture;  ///< no value for a model without experts
  int64_t active_parameters = 0;              ///< parameters of the model, of experts only the active ones
  TensorBytes bytes;                          ///< bytes of the tensors that run
  /// The tensors of the original model's files by type, the type with the most bytes first.
  std::vector<StoredType> stored;
  /// Layers of the original model of which nothing runs, ascending; also of a model that was saved with its weights,
  /// which counts its own blocks anew.
  std::vector<int64_t> removed;
  std::vector<BlockPart> half_blocks;        ///< halves that run without the other half of their block, ascending
  std::vector<OwnTensors> own;               ///< blocks with tensors of their own, ascending
  bool own_norm = false;                     ///< the final norm is not that of the original model
  bool own_head = false;                     ///< the head is not that of the original model
  std::vector<AdapterDescription> adapters;  ///< in the order in which they run
  std::optional<LoraDescription> lora;       ///< the LoRA that was merged; no value without any
};

/// \param model any model
/// \return what it consists of
ModelDescription Describe(const LanguageModel& model);

/// Scores layers, and chooses those to be removed, by several criteria. One pass of the model over the text serves all.
/// \param model an original model
/// \param specs criteria and amounts
/// \param text calibration text; it is read if ReadsText(specs), and may be empty otherwise
/// \param seed of the samples of the text, and of criteria that choose at random
/// \param resources what the job may use of the machine
/// \param progress receives reports; null: none are made
/// \return scores and removed layers of each criterion, in the order of `specs`
/// \throws UsageError for a model that is pruned, corrected or fine-tuned, and for an amount or an option that makes no
///     sense; Error for text that is missing, malformed or too short; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<Selection> ScoreLayers(const LanguageModel& model, std::span<const PruneSpec> specs,
                                   const CalibrationSpec& text = {}, uint64_t seed = 0, const Resources& resources = {},
                                   Progress* progress = nullptr);
/// \param specs criteria and amounts
/// \return whether any of the criteria reads calibration text
/// \throws UsageError for a criterion that does not exist
bool ReadsText(std::span<const PruneSpec> specs);

/// A family of models that the library runs.
struct SupportedFamily {
  std::string architecture;  ///< the first of "architectures" in config.json, such as "LlamaForCausalLM"
  std::string name;          ///< model_type of config.json
  std::string since;         ///< the first version of the library that runs it
  std::string models;        ///< well-known models, for people
};
/// \return all families
std::vector<SupportedFamily> SupportedFamilies();

}  // namespace shiftrt
