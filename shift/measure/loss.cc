// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/loss.h"

#include "runtime/check.h"

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
  double sum = 0;
  progress.Begin("measuring the loss", predicted);
  for (const Batch& batch : batches) {
    sum += SummedLoss(decoder, batch, decoder.Forward(batch));
    progress.Advance(PredictedTokens(batch));
  }
  progress.End();
  return sum / static_cast<double>(predicted);
}

DepthPlan Replaced(const DepthPlan& plan, const Replacement& replacement) {
  return plan.With(plan.StageOf(replacement.layer), replacement.stage);
}

std::vector<double> LossesWith(const Context& context, std::shared_ptr<const Weights> weights, const DepthPlan& plan,
                               const std::vector<Replacement>& replacements, const std::vector<Batch>& batches,
                               Progress& progress) {
  const int64_t predicted = CheckedPredictedTokens(batches);
  std::vector<double> sums(replacements.size(), 0.0);
  Decoder rest(context, weights, plan);  // a decoder of its own, so that the stream of the first one stays as it is
  std::vector<Tap> taps;
  for (size_t i = 0; i < replacements.size(); ++i) {
    const size_t stage = plan.StageOf(replacements[i].layer);
    std::vector<Stage> after(plan.stages.begin() + static_cast<int64_t>(stage) + 1, plan.stages.end());
    if (replacements[i].stage) after.insert(after.begin(), *replacements[i].stage);
    taps.push_back({replacements[i].layer, TapPoint::kInput,
                    [&sums, &rest, &progress, i, after = std::move(after)](const Rows& h, const Batch& batch) {
                      sums[i] += SummedLoss(rest, batch, rest.Resume(batch, h, after));
                      progress.Advance(batch.size());
                    }});
  }
  Decoder decoder(context, weights, plan, std::move(taps));
  int64_t tokens = 0;
  for (const Batch& b : batches) tokens += b.size();
  progress.Begin("trying removals", tokens * static_cast<int64_t>(replacements.size()));
  for (const Batch& batch : batches) decoder.Forward(batch, true);
  progress.End();
  for (double& sum : sums) sum /= static_cast<double>(predicted);
  return sums;
}

}  // namespace shiftrt
