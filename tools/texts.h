// SPDX-License-Identifier: Apache-2.0
// Texts that commands calibrate on and measure with, when they are named and when they are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "text/calibration.h"

namespace CLI {
class App;
}

namespace shiftrt {

struct CommonOptions;

// Pulls the texts of a list (TextsIn) that are known by name, are not there and may be pulled.
void PullMissingTexts(const std::string& list, const CommonOptions& common);
// The calibration text that `given` (--calib) names, or else calibration.txt in the model's directory, or else C4's
// validation text. Samples are cut to the model's context. Pulls a text that is known by name if it is not there and
// may be pulled. Throws UsageError if there is none of them.
CalibrationSpec CalibrationFor(const std::string& given, const Model& model, const CommonOptions& common);
// The same for a model in `directory` with a context of so many tokens.
CalibrationSpec CalibrationFor(const std::string& given, const std::filesystem::path& directory, int64_t context,
                               const CommonOptions& common);
// `device`: that of the decoders which read it.
CalibrationSet OpenCalibration(const std::string& given, const Model& model, const CommonOptions& common,
                               Device device);

// Tokens whose perplexity is measured, and where they are from.
struct HeldOutText {
  std::string source;
  std::vector<int32_t> tokens;
  int64_t all = 0;              // tokens of the whole text
  bool of_calibration = false;  // samples of the calibration text that are not fitted

  // Keeps the first `limit` tokens, but no fewer than one `window`; all of them where `limit` is 0.
  void Limit(int64_t limit, int64_t window);
  // "first 16384 of 341469 tokens"; "" where the text is whole.
  std::string Part() const;
  // The source, and which part of it where it is not whole.
  std::string Description() const;
  // True if its perplexity can be measured.
  bool Scored() const { return tokens.size() > 1; }
  // Says how it is measured on a model of this configuration.
  HeldOutReport Report(const std::string& protocol, const ModelConfig& config) const;
};
// The held-out text that --text names.
struct HeldOutChoice {
  std::string given;
  bool wikitext = false;  // if nothing is given: WikiText-2's test text comes before samples of the calibration text
  bool required = true;   // false: the command goes on without a text if there is none
};
// The text that is named, or heldout.txt in the model's directory, or WikiText-2's test text where that is there or may
// be pulled, or else the held-out samples of `calibration`. If there is none of them, returns no tokens, or throws
// UsageError if a text is required.
HeldOutText OpenHeldOut(const HeldOutChoice& text, const Model& model, const CalibrationSet& calibration,
                        const CommonOptions& common);
// The text of a file or of a known name, tokenised as gptq and seq128 ask for it.
HeldOutText ReadHeldOut(const std::string& name, const Model& model);
// Adds --text-tokens.
void AddTextTokens(CLI::App& app, int64_t& text_tokens);

}  // namespace shiftrt
