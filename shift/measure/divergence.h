// SPDX-License-Identifier: Apache-2.0
// The divergence of many depth plans from the original model, over the same sequences.
#pragma once

#include <memory>
#include <vector>

#include "engine/decoder.h"
#include "engine/gradients.h"

namespace shiftrt {

// Each sequence in which a token is predicted, as a batch of its own.
std::vector<Batch> PredictedSequences(const std::vector<Batch>& batches);

class Divergence {
 public:
  // Each of `sequences` is a batch of one sequence. Plans to be compared run the blocks 0 .. first - 1 as they are:
  // those run once, here. Two streams of the text are kept.
  Divergence(const Context& context, const std::shared_ptr<const Weights>& weights, std::vector<Batch> sequences,
             int64_t first);
  // KL(original model || plan) of each plan (rows) over each of the sequences `which` (columns), summed over its
  // predicted tokens, nats.
  std::vector<std::vector<double>> Of(const std::vector<DepthPlan>& plans, const std::vector<int64_t>& which);

  int64_t sequences() const { return std::ssize(sequences_); }
  int64_t predicted(int64_t sequence) const { return sequences_[sequence].size() - 1; }  // tokens of it

 private:
  double Of(const DepthPlan& plan, int64_t sequence);

  const Context context_;
  const std::vector<Batch> sequences_;
  int64_t first_ = 0;
  std::vector<KeptRows> before_, after_;  // per sequence: the stream before block first_, and after all blocks
  Decoder decoder_;
  GradientEngine head_;
};

}  // namespace shiftrt
