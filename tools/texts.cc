// SPDX-License-Identifier: Apache-2.0
#include "tools/texts.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "models/model.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/printable.h"
#include "runtime/text.h"
#include "text/documents.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/standard_output.h"

namespace shiftrt {

namespace {

// The calibration text if the user names none: pages of the web, an encyclopedia, instructions and programs, because a
// repair returns little on kinds of text that it was not fitted to (docs/results/qwen.md).
constexpr const char* kCalibration = "c4,wikitext2,alpaca,code-alpaca";
// The held-out text if the user names none, as in the paper.
constexpr const char* kHeldOut = "wikitext2-test";

// Pulls a text that the user did not name, if it is not there. Where that fails, says why and returns false, because
// the command may do without it.
bool PullUnnamed(const std::string& name, const CommonOptions& common) {
  return common.processes->FirstBeforeOthers([&] {
    try {
      return PullMissingText(name, common.offline, common.quiet);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      fmt::print(stderr, "shiftrt: {}\n", error.what());
      return false;
    }
  });
}

// Those of the calibration texts that are on this machine or can be pulled, with commas between them. One that cannot
// is said, and the rest are not pulled then, because the hub is out of reach.
std::string PullUnnamedCalibration(const std::string& names, const CommonOptions& common) {
  std::vector<std::string> found, missing;
  for (const std::string& name : TextsIn(names)) {
    const bool there = missing.empty() ? PullUnnamed(name, common) : !LookForText(name).empty();
    (there ? found : missing).push_back(name);
  }
  if (!found.empty() && !missing.empty() && common.processes->first())
    Tell(fmt::format("the calibration text lacks {}, because {} not on this machine", fmt::join(missing, ", "),
                     missing.size() == 1 ? "it is" : "they are"));
  return fmt::format("{}", fmt::join(found, ","));
}

}  // namespace

void RefuseMissingTexts(std::initializer_list<std::string> lists) {
  for (const std::string& list : lists) {
    if (list.empty()) continue;
    for (const std::string& name : TextsIn(list))
      if (FindKnownText(name) == nullptr) ResolveText(name);
  }
}

void RefuseMissingTextsBeforePull(const CommonOptions& common, std::initializer_list<std::string> lists) {
  if (IsToBePulled(common.model)) RefuseMissingTexts(lists);
}

void RefuseSizes(const std::string& list) {
  if (list.empty()) return;
  for (const std::string& text : TextsIn(NamesIn(list))) {
    const size_t colon = text.rfind(':');
    if (colon != text.npos && LookForText(text).empty() && !LookForText(text.substr(0, colon)).empty())
      FailUsage("--calib {}: a text to train on is given without a size; --samples and --length choose it", text);
  }
}

std::string DefaultText(const std::string& given, const std::filesystem::path& directory, const char* file) {
  if (!given.empty()) return given;
  const auto text = directory / file;
  return std::filesystem::exists(text) ? text.string() : "";
}

void PullMissingTexts(const std::string& list, const CommonOptions& common) {
  common.processes->FirstBeforeOthers([&] {
    bool all = true;
    for (const std::string& name : TextsIn(list)) all &= PullMissingText(name, common.offline, common.quiet);
    return all;
  });
  for (const std::string& name : TextsIn(list)) ResolveText(name);  // throws for one that --offline leaves missing
}

bool ShareText(const std::string& one, const std::string& other) {
  for (const std::string& name : TextsIn(one)) {
    const std::filesystem::path file = LookForText(name);
    if (file.empty()) continue;
    for (const std::string& known : TextsIn(other))
      if (const std::filesystem::path found = LookForText(known);
          !found.empty() && std::filesystem::equivalent(file, found))
        return true;
  }
  return false;
}

CalibrationSpec CalibrationFor(const std::string& given, const LanguageModel& model, const CommonOptions& common,
                               const std::string& by_default) {
  const std::string unnamed = by_default.empty() ? kCalibration : by_default;
  const std::string text = DefaultText(given, model.Directory(), "calibration.txt");
  CalibrationSpec spec = ParseCalibration(text.empty() ? unnamed : text);
  if (!text.empty()) {
    PullMissingTexts(spec.source, common);
  } else if (spec.source = PullUnnamedCalibration(unnamed, common); spec.source.empty()) {
    FailUsage(
        "give calibration text with --calib NAME|FILE[,...][:samples[xtokens]] (.txt, .jsonl, .json or .parquet); a "
        "few "
        "hundred samples are enough, of the kinds of text that the model is for. Without --calib they are of {}: "
        "`shiftrt pull --dataset {}`",
        unnamed, TextsIn(unnamed).front());
  }
  return spec;
}

HeldOutText OpenHeldOut(const HeldOutChoice& choice, const LanguageModel& model, HeldOutText samples,
                        const CommonOptions& common) {
  std::string text = DefaultText(choice.given, model.Directory(), "heldout.txt");
  if (text.empty() && choice.wikitext && PullUnnamed(kHeldOut, common)) text = kHeldOut;
  if (!text.empty()) {
    common.processes->FirstBeforeOthers([&] { return PullMissingText(text, common.offline, common.quiet); });
    HeldOutText heldout = ReadHeldOutText(model, text);
    if (!heldout.Scored())  // said before the work, and not where the perplexity would be measured
      FailUsage("--text {}: a perplexity needs 2 tokens, and this text has {}", text, heldout.tokens.size());
    return heldout;
  }
  if (samples.tokens.empty() && !choice.required) return {};
  if (samples.tokens.empty())
    FailUsage(
        "give held-out text with --text FILE, for the perplexity, or get WikiText-2's: `shiftrt pull --dataset {}`",
        kHeldOut);
  return samples;
}

void Limit(int64_t limit, const LanguageModel& model, const std::string& protocol, HeldOutText& text) {
  if (limit > 0) text.tokens.resize(std::min<size_t>(text.tokens.size(), std::max(limit, WindowOf(model, protocol))));
}

std::string FileOfText(const std::string& name) { return ResolveText(name).string(); }

std::string ForTerminal(const std::string& text) { return Printable(text); }

std::string ReadFileText(const std::string& file) { return ReadText(file == "-" ? "/dev/stdin" : file); }

void WriteFileText(const std::string& file, const std::string& text) { WriteFile(file, text); }

void AddTextTokens(CLI::App& app, int64_t& text_tokens) {
  app.add_option("--text-tokens", text_tokens,
                 "measure perplexity on the first N tokens of the text only, but on one window at least (0: all)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
}

}  // namespace shiftrt
