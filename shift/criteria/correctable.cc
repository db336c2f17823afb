// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/correctable.h"

#include <algorithm>

#include "runtime/host_memory.h"
#include "runtime/shared_items.h"
#include "shift/criteria/probes.h"
#include "shift/fit/fit.h"

namespace shiftrt {

namespace {

Correctable Correct(const Context& context, const RidgeSums& sums, const RidgeSolution& solution, int64_t rank) {
  const LowRank factors = LeadingFactors({context, sums, solution, Factorization::kReducedRank}, rank);
  const double unexplained = 1.0 - RSquared(context, sums, {factors.p.view(), factors.q.view()}, factors.b.view());
  const double numbers = static_cast<double>(sums.tokens() * sums.hidden());
  return {MakeLra(factors), unexplained * sums.CenteredDeltaSquares() / numbers};
}

int64_t AdapterRank(const CriterionTask& task) {
  return std::min(task.spec.Option("rank"), task.input.weights->config.hidden);
}

const std::vector<Correctable>& Corrections(const CriterionTask& task) {
  return task.probes.Get<CorrectableProbe>().Found(task.quota.unit(), AdapterRank(task));
}

}  // namespace

CorrectableProbe::CorrectableProbe(const CriterionInput& input, Progress& progress)
    : input_(input), progress_(progress) {}

void CorrectableProbe::Want(Unit unit, int64_t rank) {
  const bool known = std::any_of(found_.begin(), found_.end(), [&](const auto& f) { return f.first.first == unit; });
  found_[{unit, rank}];
  const int64_t units = known ? 0 : UnitsOf(unit, input_.weights->config.layers);
  for (int64_t i = 0; i < units; ++i) {
    const BlockPart part = PartOf(unit, i);
    parts_.push_back({unit, Site::Between(part.begin(), part.end())});
  }
}

int64_t CorrectableProbe::parts() const { return std::ssize(parts_); }

int64_t CorrectableProbe::parts_at_once() const {
  return UsableMemory(input_.context) / RidgeSums::Bytes(input_.weights->config.hidden);
}

void CorrectableProbe::Begin(Collector& collector, int64_t begin, int64_t end) {
  probe_.emplace();
  sums_.clear();
  begin_ = begin;
  for (int64_t i = begin; i < end; ++i) sums_.emplace_back(input_.weights->config.hidden);
  // Streams grow with depth, and what follows reads them through an RMSNorm.
  const TokenWeights relative = {.norm = true};
  for (int64_t i = begin; i < end; ++i) probe_->Add(parts_[i].site, sums_[i - begin], relative);
  probe_->Begin(collector, 0, end - begin);
}

void CorrectableProbe::End() {
  probe_.reset();
  progress_.Begin("solving", std::ssize(sums_));
  const auto unit_of = [&](int64_t i) { return parts_[begin_ + i].unit; };
  // Fits the corrections of a sum of the group, one per rank that is asked for its unit, in the order of found_.
  const auto correct = [&](int64_t i) {
    const RidgeSolution solution = SolveRidge(input_.context, sums_[i], {});
    std::vector<Correctable> found;
    for (const auto& [wanted, all] : found_)
      if (wanted.first == unit_of(i)) found.push_back(Correct(input_.context, sums_[i], solution, wanted.second));
    CountFit(input_.context);
    return found;
  };
  std::vector<std::vector<Correctable>> found = SharedLoop(
      input_.context, std::ssize(sums_), correct, [&](int64_t first, int64_t end) { progress_.Advance(end - first); });
  progress_.End();
  for (int64_t i = 0; i < std::ssize(sums_); ++i) {
    auto correctable = found[i].begin();
    for (auto& [wanted, all] : found_)
      if (wanted.first == unit_of(i)) all.push_back(std::move(*correctable++));
  }
  sums_.clear();
}

void PlugCorrections(const CriterionTask& task) {
  task.probes.Get<CorrectableProbe>().Want(task.quota.unit(), AdapterRank(task));
}

Selection SelectByResidual(const CriterionTask& task) {
  Selection selection;
  for (const Correctable& correctable : Corrections(task)) selection.scores.push_back(correctable.residual);
  selection.removed = PickUnits(selection.scores, task.quota);
  return selection;
}

StandIn CorrectedBy(const CriterionTask& task) {
  return [&corrections = Corrections(task), unit = task.quota.unit()](const BlockPart& part) {
    return std::optional<Stage>(AdapterStage{{part}, corrections[unit == Unit::kHalf ? part.begin() : part.layer].lra});
  };
}

Selection SelectByCorrectedLoss(const CriterionTask& task) { return SelectGreedily(task, CorrectedBy(task)); }

}  // namespace shiftrt
