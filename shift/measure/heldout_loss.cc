// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/heldout_loss.h"

#include <numeric>

#include "runtime/check.h"
#include "shift/measure/loss.h"
#include "shift/sums/streams.h"

namespace shiftrt {

HeldOutLoss::HeldOutLoss(const Context& context, std::shared_ptr<const Weights> weights,
                         const std::vector<Batch>& batches, int64_t tokens, int64_t first)
    : batches_(FirstSequences(batches, tokens)),
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
  std::vector<std::vector<double>> losses(batches_.size());
  auto stream = streams_.begin();
  Processes& processes = decoder_.processes();
  for (size_t b = 0; b < batches_.size(); ++b) {
    if (!processes.Mine(static_cast<int64_t>(b))) continue;
    const Rows residual = decoder_.Resume(batches_[b], (stream++)->rows(), rest);
    losses[b] = SequenceLosses(decoder_, batches_[b], residual);
  }
  processes.Share(
      std::ssize(losses), [&](Packer& out, int64_t b) { out.PutAll(losses[b]); },
      [&](Unpacker& in, int64_t b) { losses[b] = in.GetAll<double>(); });
  std::vector<double> sums;
  for (const std::vector<double>& batch : losses) sums.insert(sums.end(), batch.begin(), batch.end());
  return sums;
}

}  // namespace shiftrt
