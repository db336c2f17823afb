// SPDX-License-Identifier: Apache-2.0
// The loss of many depth plans over the same held-out tokens.
#pragma once

#include <memory>
#include <vector>

#include "engine/decoder.h"

namespace shiftrt {

class HeldOutLoss {
 public:
  // Whole sequences from the start of `batches` until they hold `tokens` tokens, or all. Plans to be compared run the
  // blocks 0 .. first - 1 as they are: those run once, here. Throws Error where no token is predicted.
  HeldOutLoss(const Context& context, const std::shared_ptr<const Weights>& weights, const std::vector<Batch>& batches,
              int64_t tokens, int64_t first);
  // Mean over the predicted tokens, in nats per token.
  double operator()(const DepthPlan& plan);
  // The sum over each sequence, nats.
  std::vector<double> BySequence(const DepthPlan& plan);
  int64_t predicted() const { return predicted_; }

 private:
  const Context context_;
  std::vector<Batch> batches_;
  std::vector<KeptRows> streams_;  // by batch, before block first_ (StreamsBefore)
  int64_t first_ = 0, predicted_ = 0;
  Decoder decoder_;
};

// The mean by which a loss is lower than another on the same sequences.
struct PairedGain {
  double gain = 0;   // nats per token; negative where the loss is higher
  double error = 0;  // its standard error over the sequences; infinite for a single sequence
};
// `before`, `after`: sums over each sequence, as BySequence() returns them. `tokens`: predicted tokens of all
// sequences. Sequences are paired, so that what makes one of them hard for every model does not count.
PairedGain GainOver(const std::vector<double>& before, const std::vector<double>& after, int64_t tokens);

}  // namespace shiftrt
