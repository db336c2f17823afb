// SPDX-License-Identifier: Apache-2.0
// An evolutionary search over whole choices (after EvoPress, Sieberling et al. 2024), which compares what is left once
// it is repaired: a choice is scored by KL(original || pruned model with an adapter in each removed unit's place).
#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>

#include "engine/gradients.h"
#include "runtime/random.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"
#include "shift/criteria/correctable.h"
#include "shift/criteria/greedy.h"
#include "shift/measure/divergence.h"
#include "shift/measure/loss.h"

namespace shiftrt {

using Plug = void(const CriterionTask& task);
using Select = Selection(const CriterionTask& task);
// influence.cc, correctable.cc
Plug PlugBlocks, PlugWindow, PlugCorrections;
Select SelectByBlockInfluence, SelectByAngle, SelectByStreamline, SelectByResidual;

namespace {

constexpr int64_t kOffspring = 8;  // offspring per round
constexpr int64_t kMostSwaps = 3;  // between a choice and its offspring

using Units = std::vector<int64_t>;  // ascending

// A choice of units, and the divergence that it leaves on each sequence.
struct Choice {
  Units units;
  std::vector<double> divergences;

  double Over(const std::vector<int64_t>& sequences) const {
    double sum = 0;
    for (const int64_t s : sequences) sum += divergences[s];
    return sum;
  }
};

class Search {
 public:
  explicit Search(const CriterionTask& task)
      : task_(task),
        stand_in_(CorrectedBy(task)),
        divergence_(task.input.context, task.input.weights, PredictedSequences(LossBatches(task)),
                    PartOf(task.quota.unit(), task.quota.first()).layer),
        all_(divergence_.sequences()),
        random_(task.input.seed) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  Selection Run() {
    Selection selection;
    selection.scores = ScoresAlone();
    std::vector<Choice> starts;
    const auto add = [&](const std::vector<BlockPart>& removed) {
      if (const Units units = UnitsOf(removed); tried_.insert(units).second) starts.push_back({units, Nothing()});
    };
    add(PickUnits(selection.scores, task_.quota));
    for (Select* const select : {&SelectByBlockInfluence, &SelectByAngle, &SelectByStreamline, &SelectByResidual})
      add(select(task_).removed);
    Measure(starts, all_);
    const Choice best = Climb(*std::min_element(
        starts.begin(), starts.end(), [&](const Choice& a, const Choice& b) { return a.Over(all_) < b.Over(all_); }));
    selection.removed = PartsOf(best.units);
    return selection;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Unit unit() const { return task_.quota.unit(); }
  std::vector<double> Nothing() const { return std::vector<double>(all_.size()); }
  std::vector<BlockPart> PartsOf(const Units& units) const {
    return unit() == Unit::kHalf ? PartsAt(units) : WholeBlocks(units);
  }
  Units UnitsOf(const std::vector<BlockPart>& parts) const {
    if (unit() == Unit::kBlock) return LayersOf(parts);
    Units units;
    for (const BlockPart& part : parts)
      for (int64_t place = part.begin(); place < part.end(); ++place) units.push_back(place);
    return units;
  }
  DepthPlan PlanOf(const Units& units) const {
    DepthPlan plan = DepthPlan::Original(task_.input.weights->config.layers);
    for (const int64_t unit : units) {
      const BlockPart part = PartOf(task_.quota.unit(), unit);
      plan = Replaced(plan, WithoutPart(plan.stages[plan.StageOf(part.layer)].block(), part.halves, stand_in_(part)));
    }
    return plan;
  }

  // Measures the choices on these sequences.
  void Measure(std::vector<Choice>& choices, const std::vector<int64_t>& sequences) {
    std::vector<DepthPlan> plans;
    plans.reserve(choices.size());
    for (const Choice& choice : choices) plans.push_back(PlanOf(choice.units));
    const std::vector<std::vector<double>> found = divergence_.Of(plans, sequences);
    for (size_t c = 0; c < choices.size(); ++c)
      for (size_t i = 0; i < sequences.size(); ++i) choices[c].divergences[sequences[i]] = found[c][i];
  }

  // The divergence per token that each unit leaves if it alone is replaced, on the first sequence.
  std::vector<double> ScoresAlone() {
    std::vector<Choice> alone;
    for (int64_t unit = task_.quota.first(); unit < task_.quota.end(); ++unit) alone.push_back({{unit}, Nothing()});
    Measure(alone, {0});
    std::vector<double> scores(task_.quota.units(), std::numeric_limits<double>::quiet_NaN());
    for (const Choice& choice : alone)
      scores[choice.units.front()] = choice.divergences[0] / static_cast<double>(divergence_.predicted(0));
    return scores;
  }

  static bool AdmitsMore(const Quota& quota) {
    for (int64_t unit = quota.first(); unit < quota.end(); ++unit)
      if (quota.Admits(unit)) return true;
    return false;
  }

  // A new choice that differs from this one by one to kMostSwaps units, fewer more often; empty if none was found.
  Units Offspring(const Units& parent) {
    constexpr int kAttempts = 100;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Units kept = parent, free;
      int64_t swaps = std::min(random_.Below(kMostSwaps), random_.Below(kMostSwaps)) + 1;
      for (; swaps > 0 && !kept.empty(); --swaps) kept.erase(kept.begin() + random_.Below(std::ssize(kept)));
      Quota quota = task_.quota;
      for (const int64_t unit : kept) quota.Take(unit);
      for (int64_t unit = quota.first(); unit < quota.end(); ++unit)
        if (!std::binary_search(parent.begin(), parent.end(), unit)) free.push_back(unit);
      while (!free.empty()) {
        const auto drawn = free.begin() + random_.Below(std::ssize(free));
        if (quota.Admits(*drawn)) quota.Take(*drawn);
        free.erase(drawn);
      }
      Units units = UnitsOf(quota.Removed());
      // Units that are counted must be as many as before, and of a size no other may fit; there may be too few others.
      const bool enough = quota.by_size() ? !units.empty() && !AdmitsMore(quota) : std::ssize(units) == quota.count();
      if (enough && tried_.insert(units).second) return units;
    }
    return {};
  }

  // One round: measures offspring of `best` on more and more sequences, and lets half of them go each time. Returns
  // false if there was none.
  bool Improve(Choice& best, int64_t round) {
    std::vector<Choice> offspring;
    for (int64_t i = 0; i < kOffspring; ++i)
      if (const Units units = Offspring(best.units); !units.empty()) offspring.push_back({units, Nothing()});
    if (offspring.empty()) return false;
    std::vector<int64_t> order = all_, done;
    std::rotate(order.begin(), order.begin() + round % std::ssize(order), order.end());
    while (!offspring.empty() && done.size() < order.size()) {
      const size_t next = std::min(order.size(), std::max<size_t>(1, 2 * done.size()));
      const std::vector<int64_t> more(order.begin() + std::ssize(done), order.begin() + static_cast<int64_t>(next));
      Measure(offspring, more);
      done.insert(done.end(), more.begin(), more.end());
      std::sort(offspring.begin(), offspring.end(),
                [&](const Choice& a, const Choice& b) { return a.Over(done) < b.Over(done); });
      offspring.resize((offspring.size() + 1) / 2);
      if (2 * done.size() < order.size()) continue;
      // Half of the text says enough about one that is worse than its parent.
      std::erase_if(offspring, [&](const Choice& choice) { return choice.Over(done) >= best.Over(done); });
    }
    if (!offspring.empty()) best = offspring.front();
    return true;
  }

  Choice Climb(Choice best) {
    const int64_t rounds = task_.spec.Option("rounds"), seconds = 60 * task_.spec.Option("minutes");
    const auto start = Clock::now();
    int64_t shown = 0;
    task_.progress.Begin("searching", rounds > 0 ? rounds : seconds);
    for (int64_t round = 0; rounds == 0 || round < rounds; ++round) {
      const int64_t spent = rounds > 0 ? round : static_cast<int64_t>(SecondsSince(start));
      task_.progress.Advance(std::min(spent, rounds > 0 ? rounds : seconds) - shown);
      shown = spent;
      if (rounds == 0 && DecidedByWriter(task_.input.context, spent >= seconds)) break;
      if (!Improve(best, round)) break;
    }
    task_.progress.End();
    return best;
  }

  const CriterionTask& task_;
  const StandIn stand_in_;
  Divergence divergence_;
  std::vector<int64_t> all_;  // sequences
  Random random_;
  std::set<Units> tried_;
};

}  // namespace

void PlugSearch(const CriterionTask& task) {
  CheckGradientType(task.input.context, *task.input.weights);  // not after the pass
  PlugBlocks(task);
  PlugWindow(task);
  PlugCorrections(task);
}

Selection SelectBySearch(const CriterionTask& task) { return Search(task).Run(); }

}  // namespace shiftrt
