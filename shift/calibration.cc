#include "shift/calibration.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

constexpr int64_t kHeldOutEvery = 8;

// A whole positive number, or 0.
int64_t Positive(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

// The documents of a .jsonl file, joined by a blank line.
std::string JoinJsonLines(const std::string& raw, const std::string& name) {
  std::string joined;
  size_t begin = 0;
  for (int64_t line = 1; begin < raw.size(); ++line) {
    const size_t end = std::min(raw.find('\n', begin), raw.size());
    const std::string_view text(raw.data() + begin, end - begin);
    begin = end + 1;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto row = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    Check(!row.is_discarded(), "{}: line {} is not valid JSON", name, line);
    Check(row.is_object() && row.contains("text") && row["text"].is_string(), "{}: line {} has no string field text",
          name, line);
    joined += (joined.empty() ? "" : "\n\n") + row["text"].get<std::string>();
  }
  return joined;
}

// `count` of `total` indices, ascending.
std::vector<int64_t> Choose(int64_t total, int64_t count, uint64_t seed) {
  std::vector<int64_t> indices(total);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  Random random(seed);
  for (int64_t i = 0; i < count; ++i) std::swap(indices[i], indices[i + random.Below(total - i)]);
  indices.resize(count);
  std::sort(indices.begin(), indices.end());
  return indices;
}

void AddSample(std::span<const int32_t> sample, int64_t batch_tokens, std::vector<Batch>& batches) {
  if (batches.empty() || batches.back().size() + static_cast<int64_t>(sample.size()) > batch_tokens)
    batches.emplace_back();
  batches.back().Add(sample);
}

}  // namespace

CalibrationSpec ParseCalibration(const std::string& text) {
  CalibrationSpec spec;
  spec.file = text;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return spec;
  const std::string_view amount = std::string_view(text).substr(colon + 1);
  const size_t times = amount.find('x');
  spec.samples = Positive(amount.substr(0, times));
  if (times != std::string_view::npos) spec.tokens = Positive(amount.substr(times + 1));
  if (spec.samples == 0 || spec.tokens < 2)
    FailUsage("calibration \"{}\": expected FILE, FILE:SAMPLES or FILE:SAMPLESxTOKENS", text);
  spec.file = text.substr(0, colon);
  return spec;
}

CalibrationSet LoadCalibration(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                               int64_t batch_tokens) {
  const std::string name = spec.file.string();
  const std::string raw = ReadFile(spec.file);
  const std::vector<int32_t> tokens =
      tokenizer.Encode(spec.file.extension() == ".jsonl" ? JoinJsonLines(raw, name) : raw);
  const int64_t available = static_cast<int64_t>(tokens.size()) / spec.tokens;
  Check(!tokens.empty(), "{}: the calibration text is empty", name);
  Check(available > 0,
        "{}: {} tokens of calibration text are less than one sample of {}; give more text or "
        "FILE:SAMPLESxTOKENS with shorter samples",
        name, tokens.size(), spec.tokens);
  const int64_t samples = std::min(spec.samples, available);

  CalibrationSet set;
  const std::vector<int64_t> chosen = Choose(available, samples, seed);
  for (int64_t i = 0; i < samples; ++i) {
    const auto sample = std::span<const int32_t>(tokens).subspan(chosen[i] * spec.tokens, spec.tokens);
    const bool held_out =
        samples > 1 && (i % kHeldOutEvery == kHeldOutEvery - 1 || (samples < kHeldOutEvery && i == samples - 1));
    AddSample(sample, batch_tokens, held_out ? set.heldout : set.fit);
    (held_out ? set.heldout_tokens : set.fit_tokens) += spec.tokens;
  }
  set.source = fmt::format("{}, {} samples of {} tokens", spec.file.filename().string(), samples, spec.tokens);
  if (samples < spec.samples) set.source += fmt::format(" (all there are; {} asked for)", spec.samples);
  set.hash = HashHex(raw);
  return set;
}

}  // namespace shiftrt
