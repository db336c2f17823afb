// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/loss.h"

#include <numeric>

#include "runtime/check.h"
#include "runtime/processes.h"

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
  std::vector<double> losses(batches.size());
  progress.Begin("measuring the loss", predicted);
  context.processes->InRounds(std::ssize(batches), [&](const Round& round) {
    if (round.mine) {
      const Batch& batch = batches[*round.mine];
      losses[*round.mine] = SummedLoss(decoder, batch, decoder.Forward(batch));
    }
    for (int64_t b = round.first; b < round.end(); ++b) progress.Advance(PredictedTokens(batches[b]));
  });
  progress.End();
  context.processes->Share(losses);
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

// These return the loss of each batch under each substitute, of the batches of this process.
//
// Each plan from its first block. So it is done where the model is split: a stream that a tap hears is on one process,
// and the others do not know of it.
std::vector<double> LossesOfWholePlans(const Context& context, const std::shared_ptr<const Weights>& weights,
                                       const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                                       const std::vector<Batch>& batches, Progress& progress) {
  Processes& processes = *context.processes;
  const int64_t count = std::ssize(substitutes);
  std::vector<double> losses(std::ssize(batches) * count);
  for (int64_t i = 0; i < count; ++i) {
    Decoder decoder(context, weights, Replaced(plan, substitutes[i]));
    processes.InRounds(std::ssize(batches), [&](const Round& round) {
      if (round.mine) {
        const Batch& batch = batches[*round.mine];
        losses[*round.mine * count + i] = SummedLoss(decoder, batch, decoder.Forward(batch));
        ++processes.work.batches;
        processes.work.tokens += batch.size();
      }
      for (int64_t b = round.first; b < round.end(); ++b) progress.Advance(batches[b].size());
    });
  }
  return losses;
}

// The blocks before a substitute run once for all.
std::vector<double> LossesFromStreams(const Context& context, const std::shared_ptr<const Weights>& weights,
                                      const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                                      const std::vector<Batch>& batches, Progress& progress) {
  const int64_t count = std::ssize(substitutes);
  std::vector<double> losses(std::ssize(batches) * count);
  double* now = nullptr;   // those of the batch that runs
  int64_t now_tokens = 0;  // of the batches that run at the same time in all processes
  Processes& processes = *context.processes;
  Decoder rest(context, weights, plan);  // a decoder of its own, so that the stream of the first one stays as it is
  std::vector<Tap> taps;
  for (size_t i = 0; i < substitutes.size(); ++i) {
    const size_t stage = plan.StageOf(substitutes[i].layer);
    std::vector<Stage> after = substitutes[i].stages;
    after.insert(after.end(), plan.stages.begin() + static_cast<int64_t>(stage) + 1, plan.stages.end());
    taps.push_back(
        {substitutes[i].layer, TapPoint::kInput,
         [&now, &now_tokens, &rest, &progress, i, after = std::move(after)](const Rows& h, const Batch& batch) {
           now[i] = SummedLoss(rest, batch, rest.Resume(batch, h, after));
           progress.Advance(now_tokens);
         }});
  }
  Decoder decoder(context, weights, plan, std::move(taps));
  processes.InRounds(std::ssize(batches), [&](const Round& round) {
    if (!round.mine) return;
    now = losses.data() + *round.mine * count;
    now_tokens = 0;
    for (int64_t b = round.first; b < round.end(); ++b) now_tokens += batches[b].size();
    decoder.Forward(batches[*round.mine], true);
    ++processes.work.batches;
    processes.work.tokens += batches[*round.mine].size();
  });
  return losses;
}

}  // namespace

std::vector<double> LossesWith(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const DepthPlan& plan, const std::vector<Substitute>& substitutes,
                               const std::vector<Batch>& batches, Progress& progress) {
  const int64_t predicted = CheckedPredictedTokens(batches), count = std::ssize(substitutes);
  int64_t tokens = 0;
  for (const Batch& b : batches) tokens += b.size();
  progress.Begin("trying removals", tokens * count);
  const auto measure = weights->split() ? LossesOfWholePlans : LossesFromStreams;
  std::vector<double> losses = measure(context, weights, plan, substitutes, batches, progress);
  progress.End();
  context.processes->Share(losses, count);
  std::vector<double> sums(count, 0.0);
  for (size_t b = 0; b < batches.size(); ++b)
    for (int64_t i = 0; i < count; ++i) sums[i] += losses[b * count + i];
  for (double& sum : sums) sum /= static_cast<double>(predicted);
  return sums;
}

}  // namespace shiftrt
