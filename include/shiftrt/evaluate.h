// SPDX-License-Identifier: Apache-2.0
/// \file
/// Measuring models: perplexity of a text, zero-shot suites.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// How MeasurePerplexity() reads a text.
struct PerplexitySettings {
  std::string protocol = "gptq";  ///< "gptq" (windows of 2048 tokens) or "seq128" (128); at most the model's positions
  int64_t tokens = 0;             ///< measure on the first so many tokens, but on one window at least; 0: all
};

/// The perplexity of a model on a text.
struct TextPerplexity {
  double perplexity = 0;  ///< exp(mean_nll)
  double mean_nll = 0;    ///< mean negative log-likelihood, nats per predicted token
  int64_t predicted = 0;  ///< tokens that were predicted
  int64_t window = 0;     ///< tokens per window
  int64_t tokens = 0;     ///< of the text that were read; a remainder shorter than a window is not predicted
  int64_t all = 0;        ///< tokens of the whole text
  std::string text = {};  ///< the name of its file
  double seconds = 0;     ///< that the measurement took
};

/// Measures perplexity over disjoint windows of a text; the first token of a window is not predicted, and what remains
/// after the last whole window is left out.
/// \param model the model to measure
/// \param text a UTF-8 text file, or a known name such as "wikitext2-test" of a text that is on this machine; of
/// WikiText
///     (.raw, .tokens) the lines are joined as GPTQ joins them
/// \param settings the protocol, and how much of the text is read
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return the perplexity
/// \throws UsageError for another protocol; Error if the file cannot be read or has less than one window; OutOfMemory;
///     Interrupted after RequestInterrupt()
TextPerplexity MeasurePerplexity(const LanguageModel& model, const std::string& text,
                                 const PerplexitySettings& settings = {}, const Resources& resources = {},
                                 Progress* progress = nullptr);

/// Which suites Evaluate() runs and where their data are.
struct SuiteSettings {
  /// Names of tasks with commas between them, "paper7", "small4" or "all"; `shiftrt eval --help-all` lists them.
  std::string tasks = "paper7";
  /// Directories with data sets, and "TASK=FILE"; the Hugging Face cache is searched after them.
  std::vector<std::string> data = {};
  int64_t shots = 0;  ///< solved examples before each question
  int64_t limit = 0;  ///< rows per task, or per subject of it; 0: all
};

/// One metric of one task for one model.
struct SuiteScore {
  /// "acc", "acc_norm", "perplexity"; "bits_per_byte" of the right answer, and its "margin" over the best wrong one
  std::string metric = {};
  double value = 0;           ///< an accuracy is between 0 and 1
  double standard_error = 0;  ///< of the value over the items; NaN where there is none
};

/// The results of one task.
struct SuiteResult {
  std::string task = {};                             ///< its name, as in SuiteSettings::tasks
  std::string quoted_metric = {};                    ///< the name of the metric that is quoted for the task
  int64_t items = 0;                                 ///< questions, or documents
  double seconds = 0;                                ///< that the scoring took
  std::vector<std::vector<SuiteScore>> scores = {};  ///< of each model, in the order given: its metrics
};

/// Scores several models on the same items. What the models have in common is computed once. The numbers are those of
/// EleutherAI's lm-evaluation-harness 0.4.
/// \param models at least one; all must share their weights, as a model and those that Repair() makes of it do
/// \param settings which tasks, and where their data are
/// \param resources what the evaluation may use of the machine
/// \param progress receives reports; null: none are made
/// \return one result per task, in the order of the tasks
/// \throws UsageError for an unknown task or models that do not share weights; Error for data that are not found or
///     malformed; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<SuiteResult> Evaluate(std::span<const LanguageModel> models, const SuiteSettings& settings = {},
                                  const Resources& resources = {}, Progress* progress = nullptr);

/// A sequence of which the last tokens are scored.
struct ScoredSequence {
  std::vector<int32_t> tokens = {};  ///< token ids, at most one more than the positions of the model
  int64_t scored = 0;                ///< the last so many are scored, each given all before it; at least 1
};

/// A text and what is scored behind it.
struct Continuation {
  std::string context = {};  ///< may be empty: then the beginning- or end-of-sequence token stands for it
  std::string text = {};     ///< the scored text; blanks at the end of the context become its first
};

/// Encodes texts as lm-evaluation-harness does: context and text together, and of too long a sequence the end.
/// \param model its tokenizer says whether a beginning-of-sequence token comes first
/// \param continuations the texts
/// \return one sequence for each
/// \throws Error for a text that has no token of its own or more than the model has positions, for invalid UTF-8, and
///     if the model has no tokenizer
std::vector<ScoredSequence> EncodeContinuations(const LanguageModel& model,
                                                std::span<const Continuation> continuations);

/// Encodes a document as lm-evaluation-harness does for loglikelihood_rolling: its log-likelihood is the sum of the
/// scores of windows, each as long as the positions of the model, in which every token is scored once.
/// \param model its tokenizer says whether a beginning-of-sequence token comes first
/// \param document UTF-8
/// \return the windows
/// \throws Error for invalid UTF-8, and if the model has no tokenizer, or one without a token to begin with
std::vector<ScoredSequence> EncodeDocument(const LanguageModel& model, const std::string& document);

/// How likely a model finds the scored tokens of a sequence.
struct SequenceScore {
  double log_likelihood = 0;  ///< sum of the natural logarithms of their probabilities
  bool greedy = false;        ///< whether each of them was the most likely token at its position
};

/// Scores sequences of tokens. They are packed into batches in which a common beginning of several is computed once.
/// \param model the model
/// \param sequences each has at least one token that is not scored
/// \param resources what the scoring may use of the machine
/// \param progress receives reports, one unit per sequence; null: none are made
/// \return one score per sequence, in their order
/// \throws UsageError for a sequence whose tokens or scored tokens are too few or too many; Error for a token id that
///     does not exist; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<SequenceScore> ScoreSequences(const LanguageModel& model, std::span<const ScoredSequence> sequences,
                                          const Resources& resources = {}, Progress* progress = nullptr);

}  // namespace shiftrt
