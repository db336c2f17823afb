// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/heldout_loss.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/check.h"
#include "runtime/shared_items.h"
#include "shift/measure/loss.h"
#include "shift/sums/streams.h"

namespace shiftrt {

HeldOutLoss::HeldOutLoss(const Context& context, const std::shared_ptr<const Weights>& weights,
                         const std::vector<Batch>& batches, int64_t tokens, int64_t first)
    : context_(context),
      batches_(FirstSequences(batches, tokens)),
      first_(first),
      predicted_(PredictedTokens(batches_)),
      decoder_(context, weights, DepthPlan::Original(weights->config.layers)) {
  Check(predicted_ > 0, "there is no held-out calibration text to compare on; two samples or more give some");
  NoProgress quiet;
  streams_ = StreamsBefore(first, context, weights, batches_, "", quiet);
}

double HeldOutLoss::operator()(const DepthPlan& plan) {
  const std::vector<double> sums = BySequence(plan);
  return std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(predicted_);
}

std::vector<double> HeldOutLoss::BySequence(const DepthPlan& plan) {
  const auto rest = std::span(plan.stages).subspan(first_);
  const auto measure = [&](int64_t b) {
    return SequenceLosses(decoder_, batches_[b], decoder_.Resume(batches_[b], streams_[b].rows(), rest));
  };
  std::vector<double> sums;
  for (const std::vector<double>& batch : SharedLoop(context_, std::ssize(batches_), measure))
    sums.insert(sums.end(), batch.begin(), batch.end());
  return sums;
}

PairedGain GainOver(const std::vector<double>& before, const std::vector<double>& after, int64_t tokens) {
  const auto count = static_cast<double>(before.size()), all = static_cast<double>(tokens);
  double gain = 0, squares = 0;
  for (size_t s = 0; s < before.size(); ++s) gain += before[s] - after[s];
  for (size_t s = 0; s < before.size(); ++s) {
    const double apart = before[s] - after[s] - gain / count;
    squares += apart * apart;
  }
  return {gain / all,
          before.size() > 1 ? std::sqrt(squares * count / (count - 1)) / all : std::numeric_limits<double>::infinity()};
}

}  // namespace shiftrt
