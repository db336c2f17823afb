// SPDX-License-Identifier: Apache-2.0
#include "tools/texts.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/text.h"
#include "text/documents.h"
#include "tools/options.h"
#include "tools/pulling.h"

namespace shiftrt {

namespace {

// The calibration text and the held-out text if the user names none, as in the paper.
constexpr const char* kCalibration = "c4";
constexpr const char* kHeldOut = "wikitext2-test";

// The text that the user named, or the file of this name in the model's directory, or "".
std::string TextBeside(const std::string& given, const std::filesystem::path& directory, const char* file) {
  if (!given.empty()) return given;
  const auto beside = directory / file;
  return std::filesystem::exists(beside) ? beside.string() : "";
}

}  // namespace

void PullMissingTexts(const std::string& list, const CommonOptions& common) {
  common.processes->FirstBeforeOthers([&] {
    bool all = true;
    for (const std::string& name : TextsIn(list)) all &= PullMissingText(name, common.offline, common.quiet);
    return all;
  });
}

CalibrationSpec CalibrationFor(const std::string& given, const Model& model, const CommonOptions& common) {
  return CalibrationFor(given, model.directory, model.weights->config.max_positions, common);
}

CalibrationSpec CalibrationFor(const std::string& given, const std::filesystem::path& directory, int64_t context,
                               const CommonOptions& common) {
  const std::string text = TextBeside(given, directory, "calibration.txt");
  CalibrationSpec spec = ParseCalibration(text.empty() ? kCalibration : text);
  const bool there =
      common.processes->FirstBeforeOthers([&] { return PullMissingText(spec.source, common.offline, common.quiet); });
  if (text.empty() && !there)
    FailUsage(
        "give calibration text with --calib NAME|FILE[:samples[xtokens]] (.txt, .jsonl, .json or .parquet); a few "
        "hundred "
        "samples of general text are enough. Without --calib it is C4's validation text: `shiftrt pull --dataset {}`",
        kCalibration);
  spec.tokens = std::min(spec.tokens, context);
  return spec;
}

CalibrationSet OpenCalibration(const std::string& given, const Model& model, const CommonOptions& common,
                               Device device) {
  return LoadCalibration(CalibrationFor(given, model, common), model.RequireTokenizer(), common.seed,
                         CalibrationBatchTokens(device));
}

HeldOutText OpenHeldOut(const HeldOutChoice& choice, const Model& model, const CalibrationSet& calibration,
                        const CommonOptions& common) {
  std::string text = TextBeside(choice.given, model.directory, "heldout.txt");
  const auto pull = [&](const std::string& name) {
    return common.processes->FirstBeforeOthers([&] { return PullMissingText(name, common.offline, common.quiet); });
  };
  if (text.empty() && choice.wikitext && pull(kHeldOut)) text = kHeldOut;
  if (!text.empty()) {
    pull(text);
    HeldOutText heldout = ReadHeldOut(text, model);
    if (!heldout.Scored())  // said before the work, and not where the perplexity would be measured
      FailUsage("--text {}: a perplexity needs 2 tokens, and this text has {}", text, heldout.tokens.size());
    return heldout;
  }
  if (calibration.heldout.empty() && !choice.required) return {};
  if (calibration.heldout.empty())
    FailUsage(
        "give held-out text with --text FILE, for the perplexity, or get WikiText-2's: `shiftrt pull --dataset {}`",
        kHeldOut);
  HeldOutText heldout{"held-out samples of the calibration text", {}, 0};
  for (const Batch& batch : calibration.heldout)
    heldout.tokens.insert(heldout.tokens.end(), batch.tokens.begin(), batch.tokens.end());
  heldout.all = std::ssize(heldout.tokens);
  heldout.of_calibration = true;
  return heldout;
}

HeldOutText ReadHeldOut(const std::string& name, const Model& model) {
  const std::filesystem::path file = ResolveText(name);
  HeldOutText text{file.filename().string(), {}, 0};
  text.tokens = model.RequireTokenizer().EncodeWithBos(PerplexityText(ReadText(file), file), file.string());
  text.all = std::ssize(text.tokens);
  return text;
}

void HeldOutText::Limit(int64_t limit, int64_t window) {
  if (limit > 0) tokens.resize(std::min<size_t>(tokens.size(), std::max(limit, window)));
}

std::string HeldOutText::Part() const {
  return std::ssize(tokens) == all ? "" : fmt::format("first {} of {} tokens", tokens.size(), all);
}

std::string HeldOutText::Description() const { return Part().empty() ? source : source + ", " + Part(); }

HeldOutReport HeldOutText::Report(const std::string& protocol, const ModelConfig& config) const {
  const int64_t all_tokens = std::ssize(tokens), window = std::min(ProtocolWindow(protocol, config), all_tokens);
  return {.text = source, .tokens = all_tokens, .protocol = protocol, .window = window};
}

void AddTextTokens(CLI::App& app, int64_t& text_tokens) {
  app.add_option("--text-tokens", text_tokens,
                 "measure perplexity on the first N tokens of the text only, but on one window at least (0: all)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
}

}  // namespace shiftrt
