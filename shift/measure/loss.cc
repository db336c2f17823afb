// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/loss.h"

#include <numeric>
#include <utility>

#include "runtime/check.h"
#include "runtime/shared_items.h"

namespace shiftrt {

namespace {

int64_t CheckedPredictedTokens(const std::vector<Batch>& batches) {
  const int64_t predicted = PredictedTokens(batches);
  Check(predicted > 0, "a loss over text without a predicted token");
  return predicted;
}

}  // namespace

std::vector<Batch> FirstSequences(const std::vector<Batch>& batches, int64_t tokens) {
  std::vector<Batch> first;
  for (const Batch& whole : batches) {
    Batch batch;
    for (int64_t s = 0; s < whole.sequences() && tokens > 0; ++s) {
      const auto sequence = std::span(whole.tokens).subspan(whole.offsets[s], whole.offsets[s + 1] - whole.offsets[s]);
      batch.Add(sequence);
      tokens -= static_cast<int64_t>(sequence.size());
    }
    if (batch.size() > 0) first.push_back(std::move(batch));
  }
  return first;
}

double MeanLoss(const Context& context, std::shared_ptr<const Weights> weights, const DepthPlan& plan,
                const std::vector<Batch>& batches, Progress& progress) {
  const int64_t predicted = CheckedPredictedTokens(batches);
  Decoder decoder(context, std::move(weights), plan);
  progress.Begin("measuring the loss", predicted);
  const auto measure = [&](int64_t b) { return SummedLoss(decoder, batches[b], decoder.Forward(batches[b])); };
  const std::vector<double> losses = SharedLoop(context, std::ssize(batches), measure, [&](int64_t first, int64_t end) {
    for (int64_t b = first; b < end; ++b) progress.Advance(PredictedTokens(batches[b]));
  });
  progress.End();
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(predicted);
}

Substitute WithoutPart(const BlockStage& block, Halves part, const std::optional<Stage>& stand_in) {
  Substitute substitute{block.layer, {}};
  const auto keep = [&](Halves half) { substitute.stages.emplace_back(BlockStage{block.layer, half, block.own}); };
  if (RunsAttention(block.halves) && !RunsAttention(part)) keep(Halves::kAttention);
  if (stand_in) substitute.stages.push_back(*stand_in);
  if (RunsMlp(block.halves) && !RunsMlp(part)) keep(Halves::kMlp);
  return substitute;
}

DepthPlan Replaced(const DepthPlan& plan, const Substitute& substitute) {
  DepthPlan replaced = plan;
  const auto at = replaced.stages.erase(replaced.stages.begin() + static_cast<int64_t>(plan.StageOf(substitute.layer)));
  replaced.stages.insert(at, substitute.stages.begin(), substitute.stages.end());
  return replaced;
}

namespace {

// By batch, the loss under each substitute.
using Losses = std::vector<std::vector<double>>;

// Each plan from its first block. So it is done where the model is split: a stream that a tap receives is in one
// process, and the others do not know of it.
Losses LossesOfWholePlans(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                          const std::vector<Substitute>& substitutes, const std::vector<Batch>& batches,
                          Progress& progress) {
  Losses losses(batches.size(), std::vector<double>(substitutes.size()));
  const SharedItems items(context, std::ssize(batches));
  for (size_t i = 0; i < substitutes.size(); ++i) {
    Decoder decoder(context, weights, Replaced(plan, substitutes[i]));
    const auto measure = [&](int64_t b) {
      losses[b][i] = SummedLoss(decoder, batches[b], decoder.Forward(batches[b]));
      CountBatch(context, batches[b].size());
    };
    items.ForEach(measure, [&](int64_t first, int64_t end) {
      for (int64_t b = first; b < end; ++b) progress.Advance(batches[b].size());
    });
  }
  items.Share(losses);
  return losses;
}

// The blocks before a substitute run once for all.
Losses LossesFromStreams(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan,
                         const std::vector<Substitute>& substitutes, const std::vector<Batch>& batches,
                         Progress& progress) {
  std::vector<double> losses(substitutes.size());  // losses on the batch that runs
  int64_t shown = 0;                               // tokens that the progress has of the batches that run
  Decoder rest(context, weights, plan);  // a decoder of its own, so that the stream of the first one stays as it is
  std::vector<Tap> taps;
  for (size_t i = 0; i < substitutes.size(); ++i) {
    const size_t stage = plan.StageOf(substitutes[i].layer);
    std::vector<Stage> after = substitutes[i].stages;
    after.insert(after.end(), plan.stages.begin() + static_cast<int64_t>(stage) + 1, plan.stages.end());
    taps.push_back(
        {substitutes[i].layer, TapPoint::kInput,
         [&losses, &shown, &rest, &progress, i, after = std::move(after)](const Rows& h, const Batch& batch) {
           losses[i] = SummedLoss(rest, batch, rest.Resume(batch, h, after));
           progress.Advance(batch.size());
           shown += batch.size();
         }});
  }
  Decoder decoder(context, weights, plan, std::move(taps));
  const auto measure = [&](int64_t b) {
    decoder.Forward(batches[b], true);
    CountBatch(context, batches[b].size());
    return losses;
  };
  return SharedLoop(context, std::ssize(batches), measure, [&](int64_t first, int64_t end) {
    int64_t tokens = 0;
    for (int64_t b = first; b < end; ++b) tokens += batches[b].size();
    progress.Advance(tokens * std::ssize(substitutes) - std::exchange(shown, 0));
  });
}

}  // namespace

std::vector<double> LossesWith(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                               const std::vector<Batch>& batches, Progress& progress) {
  const int64_t predicted = CheckedPredictedTokens(batches), count = std::ssize(substitutes);
  int64_t tokens = 0;
  for (const Batch& b : batches) tokens += b.size();
  progress.Begin("trying removals", tokens * count);
  const auto measure = weights->shares.empty() ? LossesFromStreams : LossesOfWholePlans;
  const Losses losses = measure(context, weights, plan, substitutes, batches, progress);
  progress.End();
  std::vector<double> sums(count, 0.0);
  for (const std::vector<double>& batch : losses)
    for (int64_t i = 0; i < count; ++i) sums[i] += batch[i];
  for (double& sum : sums) sum /= static_cast<double>(predicted);
  return sums;
}

}  // namespace shiftrt
