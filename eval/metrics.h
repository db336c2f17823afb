// SPDX-License-Identifier: Apache-2.0
// From scores to the metrics of the reference.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/dataset.h"
#include "eval/evaluate.h"
#include "eval/scorer.h"
#include "eval/statistics.h"

namespace shiftrt {

// A score without what it is compared with, and the numbers that it is the mean of.
struct Metric : SuiteScore {
  std::vector<double> values = {};  // one per item, 1 or 0 where right answers count; empty for perplexities
};

inline constexpr const char *kBitsPerByte = "bits_per_byte", *kMargin = "margin";

// Every task of replies has two further metrics, means over items: the share of a reply's sequences of four tokens that
// stood in it before (Welleck et al. 2019, arXiv 1908.04319), and the number of its tokens.
inline constexpr const char *kRepeated = "repeated_4grams", *kReplyTokens = "reply_tokens";
double RepeatedFourGrams(std::span<const int32_t> tokens);
// The metrics of the task, each the share of replies that are right by it, and the two above.
std::vector<Metric> MeasureReplies(const Task& task, const std::vector<Reply>& replies);

// scores[i] are those of the prompts of items[i]. With `all`, those the reference computes without reporting them too
// (acc_norm, acc_bytes and greedy, the share of items whose right answer is what the model would write).
//   acc        the likeliest answer is the right one; the first wins a tie
//   acc_norm   the same with log-likelihoods divided by the choice's code points, acc_bytes by its UTF-8 bytes. The
//              choice is the answer or, if there is one answer to several contexts, the context without shots
//   bits_per_byte  bits that the model needs for the right answer, -log2 of its probability, divided by its UTF-8
//   bytes:
//              the mean over items, lower is better. Of every task with answers, whether the reference has it or not
//   margin     bits per byte of the best wrong answer less those of the right one: the mean over items, higher is
//              better; above 0 where acc_bytes counts the item, unless the choices share the answer. Of every task with
//              choices
//   perplexity exp(-mean log-likelihood); word_, byte_perplexity and bits_per_byte over a document's own words and
//   bytes
std::vector<Metric> Measure(const Task& task, const std::vector<Item>& items,
                            const std::vector<std::vector<Score>>& scores, bool all);

}  // namespace shiftrt
