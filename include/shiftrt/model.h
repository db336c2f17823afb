// SPDX-License-Identifier: Apache-2.0
/// \file
/// Models: weights, a tokenizer, and the plan that says which blocks and adapters run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiftrt/blocks.h"
#include "shiftrt/progress.h"
#include "shiftrt/provenance.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// Says how LanguageModel::Open reads a model.
struct OpenSettings {
  WeightType weights = WeightType::kAsStored;  ///< the type of the weights in memory
  bool check_finite = false;                   ///< read all weights and refuse infinities and NaN
  bool merge_lora = true;                      ///< false: leave the LoRA factors of a saved model out
  /// A directory with a LoRA adapter of peft for this model, to be merged into its weights; empty: none.
  std::filesystem::path lora = {};
  /// The processes that share the work with this one (JoinProcesses()), all of which open the same model; if they are
  /// divided, each opens its part. Null: this process alone.
  std::shared_ptr<Processes> processes = {};
  Progress* progress = nullptr;  ///< receives reports; null: none are made
};

/// The sizes of a model.
struct ModelShape {
  int64_t layers = 0;         ///< blocks of the original model
  int64_t hidden = 0;         ///< width of the residual stream
  int64_t vocabulary = 0;     ///< token ids are 0 to vocabulary - 1
  int64_t max_positions = 0;  ///< tokens that one sequence may have
};

/// A language model: shared immutable weights, a tokenizer, and a depth plan, which lists the blocks that run and the
/// adapters that stand in the place of removed blocks.
///
/// A value of this class is a handle. Copies share the weights, and so do the pruned and the repaired models that
/// Repair() makes of a model: any number of them take the memory of one model and of their adapters. All member
/// functions are const and may be called from several threads at the same time.
class LanguageModel {
 public:
  /// Opens a model.
  /// \param name a directory with a Hugging Face checkpoint (config.json, safetensors, tokenizer files), or one that
  ///     Save() has written; a GGUF file, of a split one the first part; "demo", the model that comes with the library;
  ///     or a name that is looked up in the directories of the environment variable SHIFTRT_MODELS and in the Hugging
  ///     Face cache
  /// \param settings how the weights are read
  /// \return the model
  /// \throws Error if nothing is found (the message lists the places), or a file is malformed or not supported
  static LanguageModel Open(const std::string& name, const OpenSettings& settings = {});

  /// \return the name under which the model was opened
  const std::string& Name() const;
  /// \return the directory of the original model, or its GGUF file
  const std::filesystem::path& Directory() const;
  /// \return the sizes of the original model
  ModelShape Shape() const;
  /// \return layers of the original model, counted from 0 and ascending, of which nothing runs
  std::vector<int64_t> RemovedLayers() const;
  /// \return blocks of which at least one half runs
  int64_t Blocks() const;
  /// \return blocks of which one half alone runs
  int64_t HalfBlocks() const;
  /// \return adapters that run
  int64_t Adapters() const;
  /// \return how the model was made, as far as it was recorded; null for an original model
  const Provenance* MadeBy() const;
  /// \return parameters of the model as it runs, adapters included; a head that shares the embedding table counts once
  int64_t Parameters() const;
  /// \return bytes of weights and adapters that decoding one token reads
  int64_t BytesPerToken() const;
  /// \return the type of the weights in memory, such as "bfloat16", or of a quantised file "Q4_K_M"
  std::string WeightTypeName() const;
  /// \return a name for the weights, the same for the same weights alone
  std::string WeightsFingerprint() const;
  /// \return a name for the plan, the same for plans that compute the same alone
  std::string PlanFingerprint() const;

  /// Converts a text to token ids, preceded by the beginning-of-sequence token if the model's tokenizer adds one.
  /// \param text UTF-8
  /// \return token ids
  /// \throws Error for invalid UTF-8, and if the model has no tokenizer
  std::vector<int32_t> Encode(std::string_view text) const;
  /// Converts the first message of a conversation with an instruct model to token ids, as its chat template says.
  /// \param message the user's message, UTF-8
  /// \param system the system's message; empty: none
  /// \return token ids, up to where the model's reply begins
  /// \throws Error if the model has no chat template, or if the template refuses the messages
  std::vector<int32_t> EncodeMessage(std::string_view message, std::string_view system = {}) const;
  /// Converts token ids to text.
  /// \param tokens token ids
  /// \param special spell special tokens, too, which Encode() reads as such; they are left out otherwise
  /// \return UTF-8
  /// \throws Error for an id outside the vocabulary of the tokenizer, and if the model has no tokenizer
  std::string Decode(std::span<const int32_t> tokens, bool special = false) const;

  /// The same weights without some blocks, or halves of them, and without any adapter.
  /// \param parts blocks and halves of the original model, ascending, each once
  /// \return the pruned model
  /// \throws Error for a block that does not exist
  LanguageModel Without(std::span<const BlockPart> parts) const;
  /// The same for whole blocks.
  /// \param layers layers of the original model to remove, counted from 0, ascending
  /// \return the pruned model
  /// \throws Error for a layer that does not exist
  LanguageModel Without(std::span<const int64_t> layers) const;

  /// \param directory any path
  /// \return whether Save() wrote it for a model of the same weights, so that WithSaved() takes it
  /// \throws Error for a directory that Save() wrote and whose file is malformed
  bool HasSaved(const std::filesystem::path& directory) const;
  /// The plan that Save() wrote to a directory, over the weights of this model.
  /// \param directory a directory that Save() wrote for a model of the same weights
  /// \return the saved model
  /// \throws Error for a malformed file, other weights, and an adapter that does not fit
  LanguageModel WithSaved(const std::filesystem::path& directory) const;
  /// The same model with another record of how it was made.
  /// \param made the record that MadeBy() returns
  /// \return the model
  LanguageModel MadeAs(Provenance made) const;

  /// Writes the plan, its adapters and the weights that it changes to a directory, which Open() and the command line
  /// read. The files are written under temporary names, flushed and then renamed.
  /// \param directory the directory; it is made if it does not exist, and files of the same names are replaced
  /// \param with_weights also write the blocks that run, the configuration and the tokenizer, so that the directory
  ///     does not need the original model
  /// \param merge_lora of a model that Finetune() made with LoRA: write changed projections instead of the factors
  /// \throws Error if the directory cannot be written
  void Save(const std::filesystem::path& directory, bool with_weights = false, bool merge_lora = false) const;
  /// Replaces the record of how it was made in the directory in which Save() wrote this model, in one step.
  /// \param directory the directory
  /// \param made the record that takes the place of MadeBy()
  /// \return false if the directory has another record: another program has saved a model there since, and it stays
  /// \throws Error if the directory has no saved model, or cannot be written
  bool RecordIn(const std::filesystem::path& directory, const Provenance& made) const;

  struct Impl;  ///< what the handle refers to; not part of the interface
  /// For the library itself.
  /// \param impl what the handle refers to
  explicit LanguageModel(std::shared_ptr<const Impl> impl);
  /// For the library itself.
  /// \return what the handle refers to
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace shiftrt
