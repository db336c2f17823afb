// SPDX-License-Identifier: Apache-2.0
#include "text/calibration.h"

#include <algorithm>
#include <numeric>

#include "runtime/check.h"
#include "runtime/random.h"
#include "runtime/words.h"
#include "text/document_rows.h"
#include "text/documents.h"

namespace shiftrt {

namespace {

// The samples that one of the texts has.
struct TextSamples {
  std::string name;                  // the file's, and which of its columns were read
  std::string hash;                  // the text's hash
  std::vector<int32_t> tokens = {};  // those of the documents that were read
  std::vector<int64_t> chosen = {};  // numbers of the samples in `tokens`, ascending
  int64_t taken = 0;                 // so many of them have a place in the set
};

// The tokens samples are cut from: of the one document there is, or of as many documents as the samples take, in a
// seeded order, each begun as the tokenizer begins a text and parted from the next by a blank line.
std::vector<int32_t> Encode(const Documents& documents, const Tokenizer& tokenizer, int64_t wanted, uint64_t seed,
                            const std::string& name, CalibrationSet& set) {
  std::vector<int64_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (int64_t i = 0; i < documents.size(); ++i) std::swap(order[i], order[i + random.Below(documents.size() - i)]);
  std::vector<int32_t> tokens;
  Documents::InOrder reader(documents, std::move(order));
  int64_t used = 0;
  while (used < documents.size() && std::ssize(tokens) < wanted) {
    Documents::Document document = reader.Next();
    if (documents.size() > 1) document.text += "\n\n";
    try {
      const std::vector<int32_t> ids = tokenizer.EncodeWithBos(document.text);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    } catch (const Error& error) {
      Fail("{}: {}", name, error.what());
    }
    ++used;
  }
  set.documents += documents.size();
  set.documents_used += used;
  set.text_tokens += static_cast<int64_t>(tokens.size());
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

// One of so many samples is held out.
constexpr int64_t kHeldoutPeriod = 8;
// The last of so many samples is held out each time: of eight, or of all if there are two to seven.
int64_t HeldoutPeriod(int64_t samples) { return std::clamp<int64_t>(samples, 2, kHeldoutPeriod); }

// The number of the text that a sample is of, among `texts`. They take turns, and the turns move on by one after each
// eighth sample, which is held out, so that the held-out samples are of all texts, too.
int64_t TextOfSample(int64_t sample, int64_t texts) {
  return (sample % kHeldoutPeriod + sample / kHeldoutPeriod) % texts;
}

void AddSample(std::span<const int32_t> sample, int64_t batch_tokens, std::vector<Batch>& batches) {
  if (batches.empty() || batches.back().size() + static_cast<int64_t>(sample.size()) > batch_tokens)
    batches.emplace_back();
  batches.back().Add(sample);
}

// Reads one text, and chooses at most so many of its samples. Throws Error if it is shorter than one.
TextSamples ReadSamples(const std::string& text, int64_t samples, int64_t tokens, const Tokenizer& tokenizer,
                        uint64_t seed, CalibrationSet& set) {
  const std::filesystem::path file = ResolveText(text);
  const Documents documents = Documents::Read(file);
  TextSamples read{.name = file.filename().string(), .hash = documents.hash()};
  read.tokens = Encode(documents, tokenizer, samples * tokens, seed, file.string(), set);
  const int64_t available = std::ssize(read.tokens) / tokens;
  Check(available > 0, "{}: the calibration text has {} tokens, fewer than one sample of {}", file.string(),
        read.tokens.size(), tokens);
  read.chosen = Choose(std::min(samples, available), available, seed);
  if (SeparatorOf(file) != 0)
    read.name += documents.At(0).prompt > 0 ? " (its columns instruction, input and output)" : " (its column text)";
  if (documents.cut()) read.name += fmt::format(" (its first {} MiB)", kMaxDocumentBytes >> 20);
  return read;
}

}  // namespace

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
  const std::vector<std::string> names = TextsIn(spec.source);
  const int64_t count = std::ssize(names);
  if (spec.samples < count)
    FailUsage(Field("calibration"), "{} has {} texts, but there is room for {}; ask for more samples", spec.source,
              count, Counted(spec.samples, "sample"));
  CalibrationSet set;
  std::vector<TextSamples> texts;
  std::vector<std::string> read, hashes;
  int64_t samples = 0;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t share = spec.samples / count + (t < spec.samples % count ? 1 : 0);
    texts.push_back(ReadSamples(names[t], share, spec.tokens, tokenizer, seed, set));
    read.push_back(texts.back().name);
    hashes.push_back(texts.back().hash);
    samples += std::ssize(texts.back().chosen);
  }
  set.hash = count == 1 ? hashes.front() : HashHex(fmt::format("{}", fmt::join(hashes, " ")));

  const int64_t period = HeldoutPeriod(samples);
  for (int64_t turn = 0, placed = 0; placed < samples; ++turn) {
    TextSamples& text = texts[TextOfSample(turn, count)];
    if (text.taken == std::ssize(text.chosen)) continue;  // it is shorter than the others
    const int64_t first = text.chosen[text.taken++] * spec.tokens;
    const bool heldout = ++placed % period == 0;
    AddSample(std::span(text.tokens).subspan(first, spec.tokens), batch_tokens, heldout ? set.heldout : set.fit);
    (heldout ? set.heldout_tokens : set.fit_tokens) += spec.tokens;
  }
  set.source = fmt::format("{}, {} samples x {} tokens", fmt::join(read, " and "), samples, spec.tokens);
  if (samples < spec.samples) set.source += fmt::format(" (all there is; {} asked for)", spec.samples);
  return set;
}

std::string CalibrationSet::Accounting() const {
  return fmt::format("{} of {} read, {} tokens: {} fitted, {} held out, {} left over", documents_used,
                     Counted(documents, "document"), text_tokens, fit_tokens, heldout_tokens,
                     text_tokens - fit_tokens - heldout_tokens);
}

}  // namespace shiftrt
