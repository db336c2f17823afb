// SPDX-License-Identifier: Apache-2.0
// Text that the original model writes for a training: its answers to prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "include/shiftrt/progress.h"
#include "models/model.h"
#include "runtime/context.h"
#include "train/answer_file.h"

namespace shiftrt {

// Answers are sampled at this temperature from all tokens.
inline constexpr double kAnswerTemperature = 0.7;

// Says how many answers there must be. One of the first three counts; if all are 0, every prompt is answered.
struct AnswersWanted {
  int64_t tokens = 0;     // tokens of prompts and answers to learn from
  int64_t sequences = 0;  // answers to learn from
  double seconds = 0;     // time for generating: what is answered until then
  int64_t heldout = 0;    // answers that are not learnt from but held out, at most a fifth of all

  // True if so many answers with so many tokens are enough.
  bool Suffice(int64_t answers, int64_t answer_tokens) const;
};

// It holds references; its maker keeps the objects alive.
struct AnswerJob {
  const Context& context;
  const Model& model;
  int64_t prompts = 0;  // the number of prompts
  // The token ids of a prompt, up to where the answer begins.
  std::function<std::vector<int32_t>(int64_t number)> encode;
  std::string description;  // describes all prompts, in their order, and how they are encoded
  int64_t length = 512;     // tokens of a prompt and its answer, of which the answer has at most half
  uint64_t seed = 0;
  AnswersWanted wanted;
  std::filesystem::path directory;  // where answers are kept; "": nowhere
  Progress& progress;
  std::function<void(const std::string& words)> warn;  // told of damaged lines of the file; may be empty
};

struct OwnAnswers {
  std::vector<OwnAnswer> answers = {};  // in the order of the prompts, without empty ones
  int64_t without = 0;                  // prompts without an answer
  double seconds = 0;                   // the time that generating them took, whenever it was

  friend auto FieldsOf(OwnAnswers& o) { return std::tie(o.answers, o.without, o.seconds); }
};

// Has the original model, whose blocks must all be there, answer prompts in the order of their numbers. The answer to a
// prompt depends on its number and the seed, and up to rounding not on the others. With `seconds` wanted, the answers
// are those that the file has from the first so many seconds of generating, so that the same command gets them again.
// One process generates, and all get the answers. Throws Error if there is no answer, if the file cannot be written,
// what `encode` throws, and Interrupted; finished answers are then in the file.
OwnAnswers AnswerPrompts(const AnswerJob& job);

}  // namespace shiftrt
