// SPDX-License-Identifier: Apache-2.0
#include "engine/score.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "engine/loss.h"
#include "runtime/check.h"
#include "runtime/shared_items.h"

namespace shiftrt {

struct PlanTree::Call {
  const Batch& batch;
  const Score& score;
  const std::function<bool(size_t)>& wanted;

  bool Wants(size_t plan) const { return !wanted || wanted(plan); }
};

PlanTree::PlanTree(const Context& context, const std::shared_ptr<const Weights>& weights,
                   const std::vector<DepthPlan>& plans)
    : whole_(!weights->split()) {
  Check(!plans.empty(), "there is no plan to run");
  std::vector<size_t> all(plans.size());
  std::iota(all.begin(), all.end(), 0);
  root_ = BranchOf(plans, std::move(all), 0);
  for (size_t p = 0; p < plans.size(); ++p) {
    const auto alike = std::find_if(plans.begin(), plans.begin() + static_cast<int64_t>(p),
                                    [&](const DepthPlan& plan) { return plan.output == plans[p].output; });
    const auto known = static_cast<size_t>(alike - plans.begin());
    decoder_of_.push_back(known < p ? decoder_of_[known] : decoders_.size());
    if (known == p) decoders_.emplace_back(context, weights, DepthPlan{root_.stages, plans[p].output});
  }
}

// A split model runs only the stages once with which all plans begin: an adapter runs in the process of the
// block after it, which a branch that ends with the adapter does not have.
PlanTree::Branch PlanTree::BranchOf(const std::vector<DepthPlan>& plans, std::vector<size_t> below, size_t from) const {
  Branch branch;
  const std::vector<Stage>& first = plans[below.front()].stages;
  size_t end = first.size();
  for (const size_t p : below) {
    const auto at = static_cast<int64_t>(from);
    const std::vector<Stage>& stages = plans[p].stages;
    const auto apart =
        std::mismatch(first.begin() + at, first.begin() + static_cast<int64_t>(end), stages.begin() + at, stages.end());
    end = static_cast<size_t>(apart.first - first.begin());
  }
  branch.stages.assign(first.begin() + static_cast<int64_t>(from), first.begin() + static_cast<int64_t>(end));
  std::vector<std::vector<size_t>> groups;
  for (const size_t p : below) {
    if (plans[p].stages.size() == end) {
      branch.ending.push_back(p);
      continue;
    }
    const auto same = std::ranges::find_if(groups, [&](const std::vector<size_t>& group) {
      return whole_ && plans[group.front()].stages[end] == plans[p].stages[end];
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(p);
  }
  std::ranges::stable_sort(groups, {}, &std::vector<size_t>::size);
  for (std::vector<size_t>& group : groups) branch.branches.push_back(BranchOf(plans, std::move(group), end));
  branch.below = std::move(below);
  return branch;
}

void PlanTree::Run(const Batch& batch, const Score& score, const std::function<bool(size_t plan)>& wanted) {
  Run(root_, nullptr, 0, {batch, score, wanted});
}

// Runs the last branch in place of the one before, so that a chain of branches keeps one stream.
void PlanTree::Run(const Branch& first, const Rows* from, size_t depth, const Call& call) {
  const auto wanted = [&](size_t plan) { return call.Wants(plan); };
  Decoder& decoder = decoders_.front();
  Rows before;
  for (const Branch* branch = &first; std::ranges::any_of(branch->below, wanted); branch = &branch->branches.back()) {
    const Rows stream =
        from == nullptr ? decoder.Forward(call.batch) : decoder.Resume(call.batch, *from, branch->stages);
    for (const size_t plan : branch->ending)
      if (wanted(plan)) call.score(plan, this->decoder(plan), stream);
    if (branch->branches.empty()) return;
    if (kept_.size() <= depth) kept_.emplace_back();
    kept_[depth].Set(stream);
    before = kept_[depth].rows();
    from = &before;
    for (size_t i = 0; i + 1 < branch->branches.size(); ++i) Run(branch->branches[i], from, depth + 1, call);
  }
}

std::vector<double> MeanLosses(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const std::vector<DepthPlan>& plans, const std::vector<Batch>& batches,
                               const std::string& phase, Progress& progress) {
  const int64_t predicted = PredictedTokens(batches), count = std::ssize(plans);
  Check(predicted > 0, "a loss over text without a predicted token");
  const auto tokens_of = [&](int64_t first, int64_t end) {
    int64_t tokens = 0;
    for (int64_t b = first; b < end; ++b) tokens += batches[b].size();
    return tokens;
  };
  PlanTree tree(context, weights, plans);
  int64_t shown = 0;  // tokens that the progress has of the batches that run
  progress.Begin(phase, tokens_of(0, std::ssize(batches)) * count);
  const auto measure = [&](int64_t b) {
    std::vector<double> losses(plans.size());
    tree.Run(batches[b], [&](size_t plan, Decoder& decoder, const Rows& stream) {
      losses[plan] = SummedLoss(decoder, batches[b], stream);
      progress.Advance(batches[b].size());
      shown += batches[b].size();
    });
    CountBatch(context, batches[b].size());
    return losses;
  };
  const auto by_batch = SharedLoop(context, std::ssize(batches), measure, [&](int64_t first, int64_t end) {
    progress.Advance(tokens_of(first, end) * count - std::exchange(shown, 0));
  });
  progress.End();
  std::vector<double> means(plans.size());
  for (const std::vector<double>& losses : by_batch)
    for (size_t p = 0; p < plans.size(); ++p) means[p] += losses[p];
  for (double& mean : means) mean /= static_cast<double>(predicted);
  return means;
}

}  // namespace shiftrt
