// SPDX-License-Identifier: Apache-2.0
// Calibration text to packed token sequences, as NAME|FILE[,NAME|FILE]...[:samples[xtokens]] says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "include/shiftrt/recipe.h"
#include "runtime/context.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

// How many samples of so many tokens each are fitted and held out, and in how many batches.
struct CalibrationCounts {
  int64_t fit_samples = 0, heldout_samples = 0;
  int64_t fit_batches = 0, heldout_batches = 0;
  int64_t samples_per_batch = 1;  // the last batch of either may have fewer
};
// Tokens of a batch, at most: products of more rows come nearer to the peak of a GPU.
inline constexpr int64_t kCalibrationBatchTokens = 2048, kGpuCalibrationBatchTokens = 4096;
inline int64_t CalibrationBatchTokens(Device device) {
  return device == Device::kCuda ? kGpuCalibrationBatchTokens : kCalibrationBatchTokens;
}
CalibrationCounts CountCalibration(int64_t samples, int64_t tokens, int64_t batch_tokens);

struct CalibrationSet {
  std::vector<Batch> fit;      // batches of whole samples
  std::vector<Batch> heldout;  // every eighth sample, never fitted; at least one when there are two samples
  int64_t fit_tokens = 0, heldout_tokens = 0;
  std::string source;                         // for provenance: file names, samples x tokens
  std::string hash;                           // hash of the text, or of several
  int64_t documents = 0, documents_used = 0;  // in the files; tokenised
  int64_t text_tokens = 0;                    // tokens of the documents used
  // A line for people: how many documents and tokens were read, fitted and held out.
  std::string Accounting() const;
};

// Reads each file once. Several texts, parted by commas, have equally many samples, in turns, and every eighth of the
// whole is held out. Of a single document it takes a seeded choice of disjoint samples, in text order; of many it
// packs a seeded choice of documents end to end, as many as it takes, and cuts samples without a gap. Fewer than asked:
// takes what there is and says so in `source`. Throws Error when a text is empty or shorter than one sample, UsageError
// for fewer samples than texts.
// `batch_tokens` bounds the tokens of a Batch; a job takes CalibrationBatchTokens() of its device.
CalibrationSet LoadCalibration(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                               int64_t batch_tokens);

}  // namespace shiftrt
