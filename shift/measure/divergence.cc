// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/divergence.h"

#include <algorithm>
#include <utility>

#include "engine/loss.h"
#include "engine/ops.h"
#include "runtime/check.h"
#include "runtime/shared_items.h"
#include "shift/sums/streams.h"

namespace shiftrt {

std::vector<Batch> PredictedSequences(const std::vector<Batch>& batches) {
  std::vector<Batch> sequences;
  for (const Batch& batch : batches)
    for (int64_t s = 0; s < batch.sequences(); ++s)
      if (const int64_t begin = batch.offsets[s], length = batch.offsets[s + 1] - begin; length > 1)
        sequences.emplace_back().Add(std::span(batch.tokens).subspan(begin, length));
  return sequences;
}

Divergence::Divergence(const Context& context, const std::shared_ptr<const Weights>& weights,
                       std::vector<Batch> sequences, int64_t first)
    : context_(context),
      sequences_(std::move(sequences)),
      first_(first),
      after_(sequences_.size()),
      decoder_(context, weights, DepthPlan::Original(weights->config.layers)),
      head_(context, weights, DepthPlan::Original(weights->config.layers)) {
  Check(PredictedTokens(sequences_) > 0, "a divergence over text without a predicted token");
  NoProgress quiet;
  before_ = StreamsBefore(first, context, weights, sequences_, "", quiet);
  const std::vector<Stage>& stages = decoder_.plan().stages;
  SharedItems(context_, std::ssize(sequences_)).ForEach([&](int64_t s) {
    after_[s].Set(decoder_.Resume(sequences_[s], before_[s].rows(), std::span(stages).subspan(first)));
  });
}

double Divergence::Of(const DepthPlan& plan, int64_t sequence) {
  const Batch& batch = sequences_[sequence];
  const Rows rows = decoder_.Resume(batch, before_[sequence].rows(), std::span(plan.stages).subspan(first_));
  const Rows teacher = after_[sequence].rows();
  DeviceMemory copy;
  return head_
      .Head(batch, {}, 0, head_.ops().Here(rows, copy), {}, {.cross_entropy = 0, .divergence = 1, .teacher = &teacher})
      .loss;
}

std::vector<std::vector<double>> Divergence::Of(const std::vector<DepthPlan>& plans,
                                                const std::vector<int64_t>& which) {
  const auto measure = [&](int64_t s) {
    std::vector<double> sums;
    if (std::find(which.begin(), which.end(), s) == which.end()) return sums;
    for (const DepthPlan& plan : plans) {
      CheckInterrupted();
      sums.push_back(Of(plan, s));
      CountBatch(context_, sequences_[s].size());
    }
    return sums;
  };
  const std::vector<std::vector<double>> by_sequence = SharedLoop(context_, sequences(), measure);
  std::vector<std::vector<double>> divergences(plans.size());
  for (size_t p = 0; p < plans.size(); ++p)
    for (const int64_t s : which) divergences[p].push_back(by_sequence[s][p]);
  return divergences;
}

}  // namespace shiftrt
