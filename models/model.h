// SPDX-License-Identifier: Apache-2.0
// A model as `--model` names it: weights, tokenizer and, for a directory written by --save, the saved plan.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "models/lora.h"
#include "models/plan.h"
#include "models/weights.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

// How a saved plan was made, as far as its file says so; "" for what it does not say.
struct Provenance {
  std::string criterion;   // by which its layers were removed
  std::string correction;  // what was put in their place, "none" for nothing
  std::string merge;       // "off", "full" or "lowrank"
};

struct Model {
  std::string name;
  std::filesystem::path directory;  // the base model's, or its GGUF file
  std::shared_ptr<const Weights> weights;
  std::shared_ptr<const Tokenizer> tokenizer;  // null where the directory has none; see RequireTokenizer()
  DepthPlan plan;                              // the saved one, or all blocks
  std::shared_ptr<const Lora> lora;            // of a saved model: the factors that are merged into the plan
  std::vector<int64_t> removed;                // layers of the original model that the saved plan does without
  std::optional<Provenance> provenance;        // of a saved plan

  // For whatever reads or writes text. Throws Error naming the directory and the files looked for where there is none.
  const Tokenizer& RequireTokenizer() const;
};

// Where `name` is: a directory; a GGUF file, of a split one the first part; "demo" (the model that ships: SHIFTRT_DEMO,
// the source tree, or the install prefix); or a repository of the Hugging Face hub (a known name, "org/name" or
// "org/name@revision") looked up in SHIFTRT_MODELS (colon-separated directories) and in the hub's cache
// (hub/settings.h), where a whole snapshot comes before one that lacks files. Throws Error listing the places looked
// at. Nothing is downloaded.
std::filesystem::path ResolveModel(const std::string& name);

// Whether `name` means a repository of the hub of which there is no whole copy here.
bool IsToBePulled(const std::string& name);

// Opens the weights and, where the directory has one, the tokenizer, and checks that they belong together (ids below
// the vocabulary). For a saved directory, opens its base model, checks its fingerprint and loads the adapters and the
// tensors of its own into `plan`, with its LoRA factors merged in the type that the weights were loaded in.
Model OpenModel(const std::string& name, const LoadOptions& options = {});

// Where the tokenizer of a model as OpenModel takes it is, or of a directory with nothing else in it.
std::filesystem::path TokenizerDirectory(const std::string& name);
std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name);

// Writes DIR/shiftrt.json and DIR/adapters.safetensors (tensor names in docs/formats.md); all files are written and
// flushed under temporary names, then renamed. `provenance` is stored under "provenance"; Provenance is read from its
// selection.criterion, correction and merge. With
// `with_weights` the kept blocks are written too, with config.json and the tokenizer, so that the directory stands
// alone. Tensors that blocks or the output have of their own are written to DIR/own.safetensors, but with the weights
// to the checkpoint. `lora`: factors that are not in the plan yet; they are written to DIR/lora, and whoever opens the
// directory has them merged.
void SaveAdapted(const Model& model, const DepthPlan& plan, const nlohmann::json& provenance, bool with_weights,
                 const std::filesystem::path& directory, const Lora* lora = nullptr);

}  // namespace shiftrt
