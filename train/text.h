// SPDX-License-Identifier: Apache-2.0
// Text to learn from: sequences of tokens, which of them are predicted, and the order in which they are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "engine/gradients.h"
#include "include/shiftrt/training.h"
#include "tokenizers/tokenizer.h"
#include "train/own_answers.h"

namespace shiftrt {

// Sequences end to end: sequence s is tokens[offsets[s]] .. tokens[offsets[s + 1]].
struct TrainingText {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> first_targets;  // the place in each sequence of the first token to predict, at least 1

  int64_t sequences() const { return static_cast<int64_t>(first_targets.size()); }
  int64_t targets() const;  // tokens to predict
  // Each of at least one target.
  void Add(std::span<const int32_t> sequence, int64_t first_target);
};

struct TrainingTexts {
  TrainingText training, validation;
  std::string source;      // "c4.jsonl, 10000 sequences of at most 512 tokens"
  std::string accounting;  // counts documents and tokens that were used and left out, for people
  std::string hash;        // a hash of both texts' tokens and targets
};

// Loads the sequences of the settings' text, which must be named, and those of the validation: of the same text at most
// a fifth, unless the settings name another one. In a text of many documents, each document is a sequence, cut at
// `length`, or several; a row of Alpaca ends with the tokenizer's EOS, if it has one and the row is not cut. A single
// document is divided into windows of `length`. No document has sequences of both kinds, except such a single one. The
// choice is seeded. Texts with shares (text/mixture.h) take turns so that each has its share of the tokens, until one
// of them is used up. `answers` are those to the prompts of each text of the model's own, in the order of the list;
// such an answer is a sequence of which, as of a row of Alpaca, the prompt is not predicted. Throws Error naming the
// file if there is no sequence with a token to predict, or fewer than two if both kinds come from it; UsageError for
// "samples" if there are fewer.
TrainingTexts LoadTrainingTexts(const FinetuneSettings& settings, const Tokenizer& tokenizer,
                                std::span<const OwnAnswers> answers = {});

// A part of a step: whole sequences that pass through the model together.
struct TrainingBatch {
  Batch batch;
  TargetWeights weights;
  int64_t targets = 0;
};
// The sequences `which` in their order, in passes of at most `most_tokens` tokens, or of one longer sequence.
std::vector<TrainingBatch> PackBatches(const TrainingText& text, std::span<const int64_t> which, int64_t most_tokens);

// The order in which sequences are read: every epoch is a seeded permutation of all, divided into batches, the last of
// which may be smaller. Which sequences a step reads follows from seed and step alone.
class ReadingOrder {
 public:
  ReadingOrder(int64_t sequences, int64_t batch, uint64_t seed);
  int64_t steps_per_epoch() const { return (sequences_ + batch_ - 1) / batch_; }
  // Steps count from 0. Valid until the next call.
  std::span<const int64_t> Step(int64_t step);

 private:
  int64_t sequences_, batch_;
  uint64_t seed_;
  int64_t epoch_ = -1;  // the epoch of order_
  std::vector<int64_t> order_;
};

}  // namespace shiftrt
