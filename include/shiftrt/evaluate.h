// SPDX-License-Identifier: Apache-2.0
/// \file
/// Measuring models: perplexity of a text, zero-shot suites.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/measurements.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// Measures perplexity over disjoint windows of a text; the first token of a window is not predicted, and what remains
/// after the last whole window is left out. A text of less than one window is one shorter window.
/// \param model the model to measure
/// \param text a UTF-8 text file, or a known name such as "wikitext2-test" of a text that is on this machine. The
///     documents of a .jsonl, .json or .parquet file are joined by blank lines, and so are the lines of WikiText (.raw,
///     .tokens), as GPTQ joins them
/// \param settings the protocol, and how much of the text is read
/// \param resources what the measurement may use of the machine
/// \param progress receives reports; null: none are made
/// \return the perplexity
/// \throws UsageError for another protocol; Error if the file cannot be read or has fewer than 2 tokens; OutOfMemory;
///     Interrupted after RequestInterrupt()
TextPerplexity MeasurePerplexity(const LanguageModel& model, const std::string& text,
                                 const PerplexitySettings& settings = {}, const Resources& resources = {},
                                 Progress* progress = nullptr);

/// A task that SuiteSettings::tasks can name.
struct SuiteName {
  std::string name = {};           ///< as it is given
  std::string title = {};          ///< as people write it
  int64_t items = 0;               ///< items in the whole data set
  std::string quoted_metric = {};  ///< the metric that is quoted for it
};
/// \return all tasks
std::vector<SuiteName> SuiteNames();

/// The data sets of suites, which are read once and used for any number of evaluations.
class Suites {
 public:
  /// Finds and reads the data sets.
  /// \param settings which tasks, and where their data are
  /// \throws UsageError for an unknown task, and for one that runs programs where that is not allowed; Error for data
  /// that
  ///     are not found or malformed, and if programs are to be run and no Python 3 or no isolation for it is there
  explicit Suites(const SuiteSettings& settings);
  /// No suite at all.
  Suites();

  /// \return whether there is none
  bool empty() const;

  struct Impl;  ///< what the handle refers to; not part of the interface
  /// For the library itself.
  /// \return what the handle refers to
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// The results of Evaluate().
struct SuiteEvaluation {
  std::vector<SuiteResult> suites = {};  ///< one per task
  /// The tasks that means are taken over: small4 if all four are there and the model has fewer than 10^9 parameters;
  /// otherwise paper7 if all seven are there; otherwise all but wikitext. Such small models guess on BoolQ, so that it
  /// is left out for them unless it is alone.
  std::vector<std::string> averaged = {};
  std::vector<std::string> averaged_titles = {};  ///< the same as people write them
  std::vector<SuiteMeans> means = {};             ///< accuracy, "bits_per_byte" and "margin", as far as tasks have them
};

/// Files and reports of an evaluation.
struct SuiteReports {
  /// Called with each result as soon as it is there.
  std::function<void(const SuiteResult& result)> done = {};
  /// Receives what a user should know, as words that continue "shiftrt: "; in the first process alone.
  std::function<void(const std::string& message)> tell = {};
  std::filesystem::path items = {};  ///< written: prompts and scores, one JSON line per item; empty: none
  /// Finished batches are recorded here, and an interrupted evaluation continues from it. The file stays until
  /// RemoveJournal(), so that results which could not be stored need not be computed again. Empty: none.
  std::filesystem::path journal = {};
  Progress* progress = nullptr;  ///< receives reports; null: none are made
};

/// Scores several models on the same items. What the models have in common is computed once. The numbers are those of
/// EleutherAI's lm-evaluation-harness 0.4.
/// \param variants at least one, with names that differ; all but the first must share their weights, and the first may
///     share them. The others are compared with the first, item by item
/// \param suites the data sets
/// \param reports files and reports
/// \param resources what the evaluation may use of the machine
/// \return the results
/// \throws UsageError for models that do not share weights; Error for a file that cannot be written; OutOfMemory;
///     Interrupted after RequestInterrupt()
SuiteEvaluation Evaluate(std::span<const ModelVariant> variants, const Suites& suites, const SuiteReports& reports = {},
                         const Resources& resources = {});

/// Removes the journal of an evaluation, with those of its other processes. Does nothing where there is none.
/// \param journal SuiteReports::journal
void RemoveJournal(const std::filesystem::path& journal);

/// The same in one call, for models that all share their weights.
/// \param models at least one
/// \param settings which tasks, and where their data are
/// \param resources what the evaluation may use of the machine
/// \param progress receives reports; null: none are made
/// \return one result per task, in the order of the tasks
/// \throws UsageError for an unknown task or models that do not share weights; Error for data that are not found or
///     malformed; OutOfMemory; Interrupted after RequestInterrupt()
std::vector<SuiteResult> Evaluate(std::span<const LanguageModel> models, const SuiteSettings& settings = {},
                                  const Resources& resources = {}, Progress* progress = nullptr);

/// \param model its tokenizer decides if `bos` is "auto"
/// \param bos as SuiteSettings::bos
/// \return whether a BOS token begins every text
/// \throws UsageError for another word, and for "always" if the tokenizer has no such token; Error if the model has no
///     tokenizer
bool AddsBos(const LanguageModel& model, const std::string& bos);

/// A sequence of which the last tokens are scored.
struct ScoredSequence {
  std::vector<int32_t> tokens = {};  ///< token ids, at most one more than the positions of the model
  int64_t scored = 0;                ///< the last so many are scored, each given all before it; at least 1
};

/// A text and what is scored after it.
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

/// Says how likely a model finds the scored tokens of a sequence.
struct SequenceScore {
  double log_likelihood = 0;  ///< sum of the natural logarithms of their probabilities
  bool greedy = false;        ///< true if each of them was the most likely token at its position
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
