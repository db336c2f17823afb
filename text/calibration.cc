// SPDX-License-Identifier: Apache-2.0
#include "text/calibration.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/random.h"
#include "text/document_rows.h"
#include "text/documents.h"

namespace shiftrt {

namespace {

bool ParsePositive(std::string_view text, int64_t* value) {
  constexpr int64_t kMost = 1'000'000'000;
  return ParseNumber(text, value) && *value >= 1 && *value <= kMost;
}

// The tokens samples are cut from: of the one document there is, or of as many documents as the samples take, in a
// seeded order, each begun as the tokenizer begins a text and parted from the next by a blank line.
std::vector<int32_t> Encode(const Documents& documents, const Tokenizer& tokenizer, const CalibrationSpec& spec,
                            uint64_t seed, const std::string& name, CalibrationSet& set) {
  const int64_t wanted = spec.samples * spec.tokens;
  std::vector<int64_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (int64_t i = 0; i < documents.size(); ++i) std::swap(order[i], order[i + random.Below(documents.size() - i)]);
  std::vector<int32_t> tokens;
  Documents::InOrder reader(documents, std::move(order));
  while (set.documents_used < documents.size() && std::ssize(tokens) < wanted) {
    Documents::Document document = reader.Next();
    if (documents.size() > 1) document.text += "\n\n";
    try {
      const std::vector<int32_t> ids = tokenizer.EncodeWithBos(document.text);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    } catch (const Error& error) {
      Fail("{}: {}", name, error.what());
    }
    ++set.documents_used;
  }
  set.text_tokens = static_cast<int64_t>(tokens.size());
  return tokens;
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

// The last of so many samples is held out each time: of eight, or of all if there are two to seven.
int64_t HeldoutPeriod(int64_t samples) { return std::clamp<int64_t>(samples, 2, 8); }

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
    spec.source = text;  // a colon before a '/' or '.' belongs to the name
  } else {
    spec.source = text.substr(0, colon);
    const size_t times = size.find('x');
    if (!ParsePositive(size.substr(0, times), &spec.samples) ||
        (times != size.npos && !ParsePositive(size.substr(times + 1), &spec.tokens)))
      FailUsage(Field("calibration"), "{}: \"{}\" is neither a number of samples (128) nor samples x tokens (128x256)",
                text, size);
  }
  if (spec.source.empty())
    FailUsage(Field("calibration"), "\"{}\" is not of the form NAME|FILE[:samples[xtokens]]", text);
  return spec;
}

CalibrationCounts CountCalibration(int64_t samples, int64_t tokens, int64_t batch_tokens) {
  CalibrationCounts counts;
  counts.heldout_samples = samples / HeldoutPeriod(samples);
  counts.fit_samples = samples - counts.heldout_samples;
  counts.samples_per_batch = std::max<int64_t>(1, batch_tokens / tokens);
  const auto batches = [&](int64_t of) { return (of + counts.samples_per_batch - 1) / counts.samples_per_batch; };
  counts.fit_batches = batches(counts.fit_samples);
  counts.heldout_batches = batches(counts.heldout_samples);
  return counts;
}

CalibrationSet LoadCalibration(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                               int64_t batch_tokens) {
  const std::filesystem::path file = ResolveText(spec.source);
  const Documents documents = Documents::Read(file);
  CalibrationSet set;
  set.hash = documents.hash();
  set.documents = documents.size();
  const std::vector<int32_t> tokens = Encode(documents, tokenizer, spec, seed, file.string(), set);
  const int64_t available = set.text_tokens / spec.tokens;
  Check(available > 0, "{}: the calibration text has {} tokens, fewer than one sample of {}", file.string(),
        set.text_tokens, spec.tokens);

  const int64_t count = std::min(spec.samples, available);
  const std::vector<int64_t> chosen = Choose(count, available, seed);
  for (int64_t i = 0; i < count; ++i) {
    const bool heldout = (i + 1) % HeldoutPeriod(count) == 0;
    AddSample(std::span(tokens).subspan(chosen[i] * spec.tokens, spec.tokens), batch_tokens,
              heldout ? set.heldout : set.fit);
    (heldout ? set.heldout_tokens : set.fit_tokens) += spec.tokens;
  }
  set.source = fmt::format("{}, {} samples x {} tokens", file.filename().string(), count, spec.tokens);
  if (SeparatorOf(file) != 0)
    set.source += documents.At(0).prompt > 0 ? " of its columns instruction, input and output" : " of its column text";
  if (documents.cut()) set.source += fmt::format(" of its first {} MiB", kMaxDocumentBytes >> 20);
  if (count < spec.samples) set.source += fmt::format(" (all there is; {} asked for)", spec.samples);
  return set;
}

std::string CalibrationSet::Accounting() const {
  return fmt::format("{} of {} document{} read, {} tokens: {} fitted, {} held out, {} left over", documents_used,
                     documents, documents == 1 ? "" : "s", text_tokens, fit_tokens, heldout_tokens,
                     text_tokens - fit_tokens - heldout_tokens);
}

}  // namespace shiftrt
