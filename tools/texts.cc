#include "tools/texts.h"

#include <algorithm>

#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/text.h"

namespace shiftrt {

namespace {

// What the user named, or the file of that name beside the model, or "".
std::string TextBeside(const std::string& given, const Model& model, const char* file) {
  if (!given.empty()) return given;
  const auto beside = model.directory / file;
  return std::filesystem::exists(beside) ? beside.string() : "";
}

}  // namespace

CalibrationSpec CalibrationFor(const std::string& given, const Model& model) {
  const std::string text = TextBeside(given, model, "calibration.txt");
  if (text.empty())
    FailUsage(
        "give calibration text with --calib NAME|FILE[:samples[xtokens]] (.txt, .jsonl or .json); a few hundred "
        "samples of general text are enough");
  CalibrationSpec spec = ParseCalibration(text);
  spec.tokens = std::min(spec.tokens, model.weights->config.max_positions);
  return spec;
}

CalibrationSet OpenCalibration(const std::string& given, const Model& model, uint64_t seed) {
  return LoadCalibration(CalibrationFor(given, model), *model.tokenizer, seed);
}

HeldOutText OpenHeldOut(const std::string& given, const Model& model, const CalibrationSet& calibration) {
  const std::string text = TextBeside(given, model, "heldout.txt");
  if (!text.empty())
    return {std::filesystem::path(text).filename().string(),
            model.tokenizer->EncodeWithBos(PerplexityText(ReadText(text), text), text)};
  if (calibration.heldout.empty()) FailUsage("give held-out text with --text FILE, for the perplexity");
  HeldOutText heldout{"held-out calibration samples (give --text FILE for another text)", {}};
  for (const Batch& batch : calibration.heldout)
    heldout.tokens.insert(heldout.tokens.end(), batch.tokens.begin(), batch.tokens.end());
  return heldout;
}

}  // namespace shiftrt
