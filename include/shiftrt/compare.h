// SPDX-License-Identifier: Apache-2.0
/// \file
/// Variants of one model side by side: perplexity, size, speed, a continuation of a prompt, and how far their
/// residual streams are from each other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/measurements.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/provenance.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// A model, and what tables call it.
struct ModelVariant {
  std::string name;     ///< "original", "pruned", "merged", or the name of a correction such as "lra"
  std::string label;    ///< for tables: "pruned + LRA 64"
  LanguageModel model;  ///< its weights are shared with those of the other variants
};
/// \param model an original model, or one that Save() has written
/// \return the variants that it has: all its blocks ("original", if the checkpoint has them), the same without
///     corrections ("pruned", if blocks are removed), and the model itself ("lra", another correction's name, "lora" if
///     only a LoRA adapter corrects it, or "merged"). A model whose own weights were saved after its blocks were
///     trained or fitted again has the last one alone.
std::vector<ModelVariant> SavedVariants(const LanguageModel& model);

/// Text whose perplexity is measured, as tokens.
struct HeldOutText {
  std::string source = {};           ///< its name, for people
  std::vector<int32_t> tokens = {};  ///< token ids of the part that is measured
  int64_t all = 0;                   ///< tokens of the whole text
  bool of_calibration = false;       ///< they are held-out samples of the text that a repair was fitted on

  /// \return whether it is long enough for a perplexity, which takes 2 tokens
  bool Scored() const { return tokens.size() > 1; }
  /// \return "first 16384 of 341469 tokens"; empty for the whole text
  std::string Part() const;
  /// \return the source, and which part of it is measured unless it is whole
  std::string Description() const;
};
/// Reads a text as the protocols "gptq" and "seq128" do.
/// \param model its tokenizer encodes the text
/// \param text a UTF-8 text file, or a known name such as "wikitext2-test" of a text that is on this machine
/// \param limit keep the first so many tokens; 0: all
/// \return the text
/// \throws Error if the file cannot be read, for invalid UTF-8, and if the model has no tokenizer
HeldOutText ReadHeldOutText(const LanguageModel& model, const std::string& text, int64_t limit = 0);
/// \param model a model
/// \param protocol "gptq" or "seq128"
/// \return tokens of a window: those of the protocol, at most the positions of the model
/// \throws UsageError for another protocol
int64_t WindowOf(const LanguageModel& model, const std::string& protocol);

/// The measurements that Compare() makes of each variant.
struct ComparisonSettings {
  std::string protocol = "gptq";  ///< protocol of the perplexity: "gptq" or "seq128"
  /// The text that each variant continues, UTF-8.
  std::string prompt = "It is a truth universally acknowledged, that";
  bool chat = false;        ///< the prompt is a user's message, written as the model's chat template says
  std::string system = {};  ///< with `chat`: the system's message; empty: none
  int64_t max_tokens = 40;  ///< tokens of the continuation at most, each the most likely one
};
/// \param settings what is measured
/// \return tokens that each variant decodes at most, one at a time, for its continuation and its speed
int64_t DecodedTokens(const ComparisonSettings& settings);
/// Checks what Compare() would refuse, for callers that do much work before it.
/// \param model the model
/// \param settings what is to be measured
/// \throws UsageError for another protocol; Error if the prompt and max_tokens together exceed the positions of the
///     model, and for `chat` without a chat template
void CheckComparison(const LanguageModel& model, const ComparisonSettings& settings);
/// Measures the perplexities of all variants, whose common first blocks run once, then the continuations one after the
/// other, and then the speed of decoding in turns, so that a machine whose speed changes treats all alike. Of several
/// processes, only those that hold the first model measure speed and continue the prompt.
/// \param variants at least one; all share their weights
/// \param heldout the text of the perplexity; without tokens, none is measured
/// \param settings what is measured
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return one result per variant, in their order
/// \throws UsageError, Error as CheckComparison() does; UsageError for no variant, and for variants that do not share
///     their weights; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<MeasuredVariant> Compare(std::span<const ModelVariant> variants, const HeldOutText& heldout,
                                     const ComparisonSettings& settings = {}, const Resources& resources = {},
                                     Progress* progress = nullptr);

/// \param models at least one; all share their weights
/// \param text at most its first 2048 tokens are run, in sequences of at most 512
/// \param seed of t-SNE
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return the drift
/// \throws UsageError for no model, and for models that do not share their weights; OutOfMemory; Interrupted after
///     RequestInterrupt()
DriftReport MeasureDrift(std::span<const LanguageModel> models, const HeldOutText& text, uint64_t seed = 0,
                         const Resources& resources = {}, Progress* progress = nullptr);

}  // namespace shiftrt
