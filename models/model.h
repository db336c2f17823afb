// SPDX-License-Identifier: Apache-2.0
// Opens a model by the name that `--model` takes: weights, tokenizer and, for a directory written by --save, the saved
// plan.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "include/shiftrt/provenance.h"
#include "models/lora.h"
#include "models/plan.h"
#include "models/weights.h"
#include "tokenizers/deferred.h"

namespace shiftrt {

struct Model {
  std::string name;
  std::filesystem::path directory;  // the directory of the base model, or its GGUF file
  std::shared_ptr<const Weights> weights;
  DeferredTokenizer tokenizer;           // none where the directory has none; see RequireTokenizer()
  DepthPlan plan;                        // the saved one, or all blocks
  std::shared_ptr<const Lora> lora;      // LoRA factors of a saved model, which are merged into the plan
  std::optional<DepthPlan> unmerged;     // the plan without them, where they are
  bool own_embedding = false;            // an adapter has changed the embedding table; `weights` has it
  std::vector<int64_t> removed;          // layers of the original model that the saved plan lacks
  std::optional<Provenance> provenance;  // only a saved plan has one
  // True if `weights` have the kept blocks alone and adapters stand between them: the plan's blocks count from 0, and
  // what the adapters replace, and `removed`, count as the original does.
  bool renumbered = false;

  // The tokenizer, for code that reads or writes text; the first call loads it. Throws Error naming the directory and
  // the files looked for if there is none, and as LoadTokenizer does.
  const Tokenizer& RequireTokenizer() const;
};

// Finds the model that `name` means and returns its directory or file. `name` is a directory, a GGUF file (of a split
// one the first part), "demo" (the model that ships: SHIFTRT_DEMO, the source tree, or the install prefix), or a
// repository of the Hugging Face hub: a known name, "org/name" or "org/name@revision". Repositories are looked up in
// SHIFTRT_MODELS (colon-separated directories) and in the hub's cache (hub/settings.h), which is searched for a whole
// snapshot first. Throws Error listing the places looked at. Nothing is downloaded.
std::filesystem::path ResolveModel(const std::string& name);

// True if `name` means a repository of the hub that is not on this machine as a whole.
bool IsToBePulled(const std::string& name);

// Opens the weights. The tokenizer of the directory, where it has one, is loaded when text is first read or written.
// For a saved directory, opens its base model, checks its fingerprint and loads the adapters and the tensors of its own
// into `plan`, with its LoRA factors merged in the type that the weights were loaded in.
Model OpenModel(const std::string& name, const LoadOptions& options = {});

// The directory with the tokenizer of the model that OpenModel would open. `name` may also be a directory with nothing
// but a tokenizer.
std::filesystem::path TokenizerDirectory(const std::string& name);
std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name);

// Writes DIR/shiftrt.json and DIR/adapters.safetensors (docs/dev/formats.md lists the tensors). All files are written
// and flushed under temporary names, then renamed. `provenance` is stored under "provenance" (types/provenance.h), and
// OpenModel reads it back. With `with_weights` the kept blocks, config.json and the tokenizer are written too, so that
// the directory needs no base model. Tensors that blocks or the output have of their own are written to the checkpoint
// if there is one, otherwise to DIR/own.safetensors. `lora`: factors that are not merged into the plan yet. They are
// written to DIR/lora, and OpenModel merges them.
void SaveAdapted(const Model& model, const DepthPlan& plan, const Provenance& provenance, bool with_weights,
                 const std::filesystem::path& directory, const Lora* lora = nullptr);

}  // namespace shiftrt
