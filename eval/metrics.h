// SPDX-License-Identifier: Apache-2.0
// From scores to the metrics of the reference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/dataset.h"
#include "eval/scorer.h"
#include "eval/statistics.h"

namespace shiftrt {

struct Metric {
  std::string name;
  Estimate estimate;
  // For metrics that count correct answers: 1 or 0 per item, and the number of correct ones. Empty for perplexities.
  std::vector<double> right;
  int64_t correct = 0;
};

// scores[i] are those of the prompts of items[i]. With `all`, those the reference computes without reporting them too
// (acc_norm, acc_bytes and greedy, the share of items whose right answer is what the model would write).
//   acc        the likeliest answer is the right one; the first wins a tie
//   acc_norm   the same with log-likelihoods divided by the answer's code points, acc_bytes by its UTF-8 bytes
//   perplexity exp(-mean log-likelihood); word_, byte_perplexity and bits_per_byte over a document's own words and
//   bytes
std::vector<Metric> Measure(const Task& task, const std::vector<Item>& items,
                            const std::vector<std::vector<Score>>& scores, bool all);

}  // namespace shiftrt
