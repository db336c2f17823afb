// SPDX-License-Identifier: Apache-2.0
// Texts that commands calibrate on and measure with, when they are named and when they are not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/model.h"
#include "shiftrt/recipe.h"
#include "text/mixture.h"  // NamesIn, for commands
#include "text/prompts.h"  // ReadPrompts, for commands

namespace CLI {
class App;
}

namespace shiftrt {

struct CommonOptions;

// The help of an option whose text is learnt from, after that of other texts.
inline constexpr const char* kOwnTextHelp =
    "own or\nown:NAME|FILE is what the original model answers to Alpaca's instructions, or to these prompts. A share\n"
    "may stand after each text: own:alpaca:70%,c4:30%";

// Throws Error for a text in these lists (TextsIn) that is neither there nor known by name. A command calls it before
// it looks for the texts that the user has not named, so that a mistyped name is the first thing that it reports.
void RefuseMissingTexts(std::initializer_list<std::string> lists);
// Does the same where the model is to be pulled, so that a wrong name is said before the download.
void RefuseMissingTextsBeforePull(const CommonOptions& common, std::initializer_list<std::string> lists);
// Returns the text that the user named, or the file of this name in the model's directory, or "".
std::string DefaultText(const std::string& given, const std::filesystem::path& directory, const char* file);
// Throws UsageError for a text in the list of --calib of `finetune` that has a size, as `run` takes it (c4:64x512).
void RefuseSizes(const std::string& list);
// Pulls the texts of a list (TextsIn) that are known by name, are not there and may be pulled. Throws Error for one
// that is not there in the end.
void PullMissingTexts(const std::string& list, const CommonOptions& common);
// True if two lists (TextsIn) have a file in common. Texts that are not there are none.
bool ShareText(const std::string& one, const std::string& other);
// The calibration text that `given` (--calib) names, or else calibration.txt in the model's directory, or else the
// known texts `by_default` ("": those of the program). Samples are cut to the model's context. Pulls a text that is
// known by name if it is not there and may be pulled. Throws UsageError if there is none of them.
CalibrationSpec CalibrationFor(const std::string& given, const LanguageModel& model, const CommonOptions& common,
                               const std::string& by_default = "");

// The held-out text that --text names.
struct HeldOutChoice {
  std::string given;
  bool wikitext = false;  // if nothing is given: WikiText-2's test text comes before samples of the calibration text
  bool required = true;   // false: the command goes on without a text if there is none
};
// The text that is named, or heldout.txt in the model's directory, or WikiText-2's test text where that is there or can
// be pulled, or else `samples` of the calibration text. If there is none of them, returns no tokens, or throws
// UsageError if a text is required.
HeldOutText OpenHeldOut(const HeldOutChoice& text, const LanguageModel& model, HeldOutText samples,
                        const CommonOptions& common);
// Keeps the first `limit` tokens, but no fewer than one window of the protocol; all of them where `limit` is 0.
void Limit(int64_t limit, const LanguageModel& model, const std::string& protocol, HeldOutText& text);
// The file of a text that is given by its path or by a known name. Throws Error where there is none.
std::string FileOfText(const std::string& name);
// A text on one line, as runtime/printable.h makes it fit for a terminal.
std::string ForTerminal(const std::string& text);
// The text of a file, as runtime/text.h reads it.
std::string ReadFileText(const std::string& file);
// Writes a whole file. Throws Error if that fails.
void WriteFileText(const std::string& file, const std::string& text);
// Adds --text-tokens.
void AddTextTokens(CLI::App& app, int64_t& text_tokens);

}  // namespace shiftrt
