// Calibration text to packed token sequences: `--calib NAME|FILE[:samples[xtokens]]`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/tokenizer.h"

namespace shiftrt {

struct CalibrationSpec {
  std::filesystem::path file;  // .txt, or .jsonl with a field `text`; .gz or .zst of either
  int64_t samples = 256;
  int64_t tokens = 512;  // a sample
};
// "FILE", "FILE:128" or "FILE:128x256". Throws UsageError.
CalibrationSpec ParseCalibration(const std::string& text);

struct CalibrationSet {
  std::vector<Batch> fit;      // batches of whole samples
  std::vector<Batch> heldout;  // every eighth sample, never fitted; at least one when there are two samples
  int64_t fit_tokens = 0, heldout_tokens = 0;
  std::string source;  // for provenance: file name, samples x tokens
  std::string hash;    // of the text
};

// Joins the documents, tokenises once and cuts disjoint samples; when there are more than asked, a seeded choice of
// them, in text order. Fewer than asked: takes what there is and says so in `source`. Throws Error when the text is
// empty or shorter than one sample. `batch_tokens` bounds the tokens of a Batch.
CalibrationSet LoadCalibration(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed,
                               int64_t batch_tokens = 2048);

}  // namespace shiftrt
