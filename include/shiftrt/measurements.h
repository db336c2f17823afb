// SPDX-License-Identifier: Apache-2.0
/// \file
/// Settings and results of measurements: perplexity, zero-shot suites, the divergence of predictions, and the drift of
/// residual streams.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

/// Says how MeasurePerplexity() reads a text.
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
  int64_t tokens = 0;     ///< tokens read from the text; a remainder shorter than a window is not predicted
  int64_t all = 0;        ///< tokens of the whole text
  std::string text = {};  ///< the name of its file
  double seconds = 0;     ///< time of the measurement
};

/// Says which suites Evaluate() runs and where their data are.
struct SuiteSettings {
  /// Names of tasks with commas between them, "paper7", "small4" or "all" (those without generated replies);
  /// `shiftrt eval --help-all` lists them.
  std::string tasks = "paper7";
  /// Directories with data sets, and "TASK=FILE"; the Hugging Face cache is searched after them.
  std::vector<std::string> data = {};
  /// Solved examples before each question; nothing: as many as the task has by default, which is 5 for gsm8k and 0 for
  /// the others.
  std::optional<int64_t> shots = {};
  int64_t limit = 0;         ///< rows per task, or per subject of it; 0: all
  std::string bos = "auto";  ///< a BOS token begins every text: "auto" (as the tokenizer says), "always" or "never"
  bool all_metrics = false;  ///< also metrics that the reference computes and does not report
  /// Allows tasks that run programs which the model wrote, each in a process in isolation (docs/evaluation.md).
  bool allow_code = false;
};

/// Sets one field of the settings of an evaluation from text.
/// \param field a field of SuiteSettings by name
/// \param text what the field's type reads; for "shots" also "", for "data" lines, for "all_metrics" "paper" or "all"
/// \param settings the settings to change
/// \throws UsageError with the name of a field that does not exist, or that cannot have the text
void Set(std::string_view field, const std::string& text, SuiteSettings& settings);

/// A score less that of the first model on the same items.
struct PairedScore {
  double difference = 0;      ///< difference of the means
  double standard_error = 0;  ///< standard error of the difference
  int64_t only_first = 0;     ///< for a metric that counts: items which only the first model has right
  int64_t only_this = 0;      ///< items which only this model has right
  double p = 1;               ///< McNemar's test, exact and two-sided, of only_first = only_this
};

/// One metric of one task for one model.
struct SuiteScore {
  /// "acc", "acc_norm", "perplexity"; "bits_per_byte" of the right answer, and its "margin" over the best wrong one. If
  /// the task has generated replies: "strict-match", "flexible-extract", "pass@1"; "repeated_4grams", the share of the
  /// replies' sequences of four tokens that repeat an earlier one; "reply_tokens", the length of the replies
  std::string metric = {};
  double value = 0;                          ///< an accuracy is between 0 and 1
  double standard_error = 0;                 ///< standard error of the value over the items; NaN if there is none
  bool counts = false;                       ///< it counts right answers
  int64_t right = 0;                         ///< right answers, if it counts them
  int64_t items = 0;                         ///< items that the value is the mean of; 0 if it is no mean over items
  std::optional<PairedScore> to_first = {};  ///< nothing for the first model, and if the value is no mean over items
};

/// The results of one task.
struct SuiteResult {
  std::string task = {};                             ///< its name, as in SuiteSettings::tasks
  std::string quoted_metric = {};                    ///< the name of the metric that is quoted for the task
  int64_t items = 0;                                 ///< questions, or documents
  double seconds = 0;                                ///< time of the scoring
  std::vector<std::vector<SuiteScore>> scores = {};  ///< for each model, in the order given, its metrics
  std::string title = {};                            ///< the name as people write it
  bool choices = false;                              ///< the answers are choices
  int64_t full_items = 0;                            ///< items of the whole data set
  int64_t shots = 0;                                 ///< solved examples before each question
  std::vector<std::filesystem::path> files = {};     ///< files that were read
  std::string data_hash = {};                        ///< hash of the texts of the rows, shots included
  std::string template_hash = {};                    ///< hash of the prompts made from a fixed row
  int64_t requests = 0;                              ///< sequences that were scored for each model
  int64_t tokens_requested = 0;                      ///< tokens of these sequences
  int64_t tokens_computed = 0;                       ///< tokens that passed through the blocks; less by what is shared
  int64_t head_rows = 0;                             ///< rows that passed through the head
  int64_t shared_stages = 0;                         ///< stages that all models begin with, and that run once for all

  /// \param model index of a model
  /// \param metric its name
  /// \return the score, or null if the task does not have the metric
  const SuiteScore* Find(size_t model, std::string_view metric) const;
};

/// The mean of one metric over tasks for one model.
struct SuiteMean {
  double value = 0;                          ///< mean over the tasks
  double standard_error = 0;                 ///< standard error of the mean
  std::optional<PairedScore> to_first = {};  ///< difference and standard error; nothing for the first model
};
/// The means of one metric.
struct SuiteMeans {
  std::string metric = {};             ///< empty: the accuracy that each task quotes
  int64_t tasks = 0;                   ///< tasks that have it
  std::vector<SuiteMean> models = {};  ///< one per model
};

/// The predictions of one token by the original and by a variant.
struct TokenFidelity {
  double divergence = 0;    ///< KL(original || variant) over the whole vocabulary, nats
  double nll_original = 0;  ///< -log of the probability that the original gives the token of the text
  double nll = 0;           ///< the same of the variant
  bool same_top = false;    ///< the likeliest token of both is the same

  /// \return the probability of the token of the text under the variant less that under the original
  double DeltaP() const;
};

/// The figures that llama.cpp's --kl-divergence prints of the tokens of a text. The standard errors take tokens as
/// independent.
struct Fidelity {
  int64_t tokens = 0;                     ///< tokens that were predicted
  double mean_kld = 0;                    ///< mean of KL(original || variant), nats
  double mean_kld_error = 0;              ///< its standard error; NaN for a single token, as the other errors
  double median_kld = 0;                  ///< median of the divergences; between two of them, they are interpolated
  double kld_90 = 0;                      ///< 90% of the divergences are at most this
  double kld_99 = 0;                      ///< 99% of the divergences are at most this
  double max_kld = 0;                     ///< the largest divergence
  double same_top = 0;                    ///< share of the tokens whose likeliest token is the same
  double same_top_error = 0;              ///< its standard error
  double mean_delta_p = 0;                ///< mean of TokenFidelity::DeltaP()
  double mean_delta_p_error = 0;          ///< its standard error
  double rms_delta_p = 0;                 ///< root of the mean of its square
  double perplexity_original = 0;         ///< perplexity of the original on these tokens
  double perplexity = 0;                  ///< perplexity of the variant on these tokens
  double log_perplexity_ratio = 0;        ///< log(perplexity / perplexity_original)
  double log_perplexity_ratio_error = 0;  ///< its standard error, from the differences token by token
};
/// \param tokens at least one
/// \return their figures
/// \throws UsageError for no token
Fidelity SummarizeFidelity(std::span<const TokenFidelity> tokens);

/// A sequence of tokens of which some are predicted.
struct FidelitySequence {
  std::vector<int32_t> tokens = {};  ///< token ids
  int64_t given = 1;                 ///< so many tokens at its beginning, at least 1, are not predicted
};
/// The figures of every predicted token, by sequence.
using SequenceFidelities = std::vector<std::vector<TokenFidelity>>;

/// The residual stream of a model where a block reads it.
struct DriftPoint {
  int64_t depth = 0;  ///< the block, counted from 0 in the original model; the number of layers: the final norm
  double norm = 0;    ///< median over tokens of the root mean square of a token's stream
  double cosine = 0;  ///< mean over tokens of the cosine to the stream of the first model at the same depth
};
/// Says how far the residual streams of several models are from that of the first.
struct DriftReport {
  std::vector<std::vector<DriftPoint>> models = {};  ///< for each model, at the blocks that all run, and at the end
  /// The points of some 250 tokens per model in a plane. A point is the stream that the final norm reads, scaled to a
  /// root mean square of 1 and projected on the two directions in which the tokens of all models together vary most.
  std::vector<std::vector<std::array<double, 2>>> components = {};
  std::vector<std::vector<std::array<double, 2>>> neighbours = {};  ///< the same tokens by t-SNE
};

}  // namespace shiftrt
