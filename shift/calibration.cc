#include "shift/calibration.h"

#include <algorithm>
#include <string_view>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/random.h"
#include "runtime/text.h"
#include "shift/parse.h"

namespace shiftrt {

namespace {

constexpr int64_t kHeldoutEvery = 8;

bool ParsePositive(std::string_view text, int64_t* value) {
  constexpr int64_t kMost = 1'000'000'000;
  return ParseNumber(text, value) && *value >= 1 && *value <= kMost;
}

// The field `text` of every line, joined by blank lines.
std::string JoinJsonLines(std::string_view lines, const std::string& name) {
  std::string joined;
  int64_t number = 0;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json document = ParseJson(line, fmt::format("{}:{}", name, number));
    Check(document.is_object() && document.contains("text") && document["text"].is_string(),
          "{}:{}: expected an object with a string \"text\"", name, number);
    if (!joined.empty()) joined += "\n\n";
    joined += document["text"].get_ref<const std::string&>();
  }
  return joined;
}

// `wanted` of the numbers below `available`, ascending, each set equally likely (Knuth, algorithm S).
std::vector<int64_t> Choose(int64_t wanted, int64_t available, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; wanted > 0; ++i) {
    if (random.Below(available - i) >= wanted) continue;
    chosen.push_back(i);
    --wanted;
  }
  return chosen;
}

// Every eighth sample, or the last of a few.
bool IsHeldout(int64_t index, int64_t count) {
  if (count < kHeldoutEvery) return count >= 2 && index == count - 1;
  return index % kHeldoutEvery == kHeldoutEvery - 1;
}

void AddSample(std::span<const int32_t> sample, int64_t batch_tokens, std::vector<Batch>& batches) {
  if (batches.empty() || batches.back().size() + static_cast<int64_t>(sample.size()) > batch_tokens)
    batches.emplace_back();
  batches.back().Add(sample);
}

}  // namespace

CalibrationSpec ParseCalibration(const std::string& text) {
  CalibrationSpec spec;
  const size_t colon = text.rfind(':');
  const std::string_view size = colon == text.npos ? std::string_view() : std::string_view(text).substr(colon + 1);
  if (colon == text.npos || size.find_first_of("/.") != size.npos) {
    spec.file = text;  // a colon before a '/' or '.' belongs to the name
  } else {
    spec.file = text.substr(0, colon);
    const size_t times = size.find('x');
    if (!ParsePositive(size.substr(0, times), &spec.samples) ||
        (times != size.npos && !ParsePositive(size.substr(times + 1), &spec.tokens)))
      FailUsage("--calib {}: \"{}\" is neither a number of samples (128) nor samples x tokens (128x256)", text, size);
  }
  if (spec.file.empty()) FailUsage("--calib \"{}\": expected FILE[:samples[xtokens]]", text);
  return spec;
}

CalibrationSet LoadCalibration(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                               int64_t batch_tokens) {
  const std::string name = spec.file.string();
  std::string text = ReadText(spec.file);
  if (WithoutCompression(spec.file).extension() == ".jsonl") text = JoinJsonLines(text, name);
  Check(text.find_first_not_of(" \t\r\n") != text.npos, "{}: the calibration text is empty", name);

  const std::vector<int32_t> tokens = tokenizer.EncodeWithBos(text, spec.file);
  const int64_t available = static_cast<int64_t>(tokens.size()) / spec.tokens;
  Check(available > 0, "{}: the calibration text has {} tokens, fewer than one sample of {}", name, tokens.size(),
        spec.tokens);

  CalibrationSet set;
  const int64_t count = std::min(spec.samples, available);
  const std::vector<int64_t> chosen = Choose(count, available, seed);
  for (int64_t i = 0; i < count; ++i) {
    const bool heldout = IsHeldout(i, count);
    AddSample(std::span(tokens).subspan(chosen[i] * spec.tokens, spec.tokens), batch_tokens,
              heldout ? set.heldout : set.fit);
    (heldout ? set.heldout_tokens : set.fit_tokens) += spec.tokens;
  }
  set.source = fmt::format("{}, {} samples x {} tokens", spec.file.filename().string(), count, spec.tokens);
  if (count < spec.samples) set.source += fmt::format(" (all there is; {} asked for)", spec.samples);
  set.hash = HashHex(text);
  return set;
}

}  // namespace shiftrt
