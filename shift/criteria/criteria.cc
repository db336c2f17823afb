// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/criteria.h"

#include <algorithm>
#include <numeric>

#include "runtime/check.h"
#include "runtime/not_finite.h"
#include "shift/criteria/probes.h"

namespace shiftrt {

using Plug = void(const CriterionTask& task);
using Select = Selection(const CriterionTask& task);
using Score = std::vector<double>(const CriterionTask& task);  // one score per unit, the lowest of which go
// influence.cc
Plug PlugBlocks, PlugWindow;
Select SelectByBlockInfluence, SelectByFrobenius, SelectByAngle, SelectByStreamline;
// correctable.cc
Plug PlugCorrections;
Select SelectByResidual, SelectByCorrectedLoss;
// search.cc
Plug PlugSearch;
Select SelectBySearch;
// perplexity.cc
Select SelectByPerplexity, SelectByPerplexityGreedy;
// prune_comp.cc
Select SelectByPruneComp;
// taylor.cc
Plug PlugTaylor;
Score TaylorScores;
// fixed.cc, magnitude.cc
Score ReverseScores, ReverseKeepLastScores, RandomScores, MagnitudeL1Scores, MagnitudeL2Scores;

namespace {

template <Score kScore, auto kPick = &PickUnits>
Selection Lowest(const CriterionTask& task) {
  Selection selection;
  selection.scores = kScore(task);
  selection.removed = kPick(selection.scores, task.quota);
  return selection;
}

Selection SelectOne(const CriterionTask& task) {
  const PruneSpec& spec = task.spec;
  if (!spec.layers.empty()) return {spec.criterion, {}, spec.layers, 1, spec.halves() ? Unit::kHalf : Unit::kBlock};
  Selection selection = FindCriterion(spec.criterion).select(task);
  selection.criterion = spec.criterion;
  selection.unit = spec.unit;
  const int64_t end = std::min(task.quota.end(), std::ssize(selection.scores));
  for (int64_t unit = task.quota.first(); unit < end; ++unit)
    CheckIsFinite(selection.scores[unit], "criterion {}: the score of layer {} is not finite", spec.criterion,
                  Name(PartOf(spec.unit, unit)));
  return selection;
}

}  // namespace

const std::vector<Criterion>& Criteria() {
  using enum Looks;
  constexpr SettingSet kAny = {Setting::kHalves, Setting::kSplit, Setting::kUpdateNorms},
                       kWhole = kAny - SettingSet{Setting::kSplit};  // needs the whole model in one process
  static const std::vector<CriterionOption> none,
      rank = {{"rank", 64}}, tokens = {{"tokens", 0}}, both = {{"rank", 64}, {"tokens", 0}},
      some_tokens = {{"tokens", 8192}}, budget = {{"minutes", 10}, {"rounds", 0}, {"tokens", 4096}, {"rank", 64}};
  static const std::vector<Criterion> table = {
      // name, summary, options, looks_at, scores_stand_alone, accepts, plug, select, consecutive
      {"bi", "block influence: 1 - mean cosine of a token's stream before and after the block", none, kPass, true, kAny,
       &PlugBlocks, &SelectByBlockInfluence},
      {"bi:frobenius", "1 - one cosine of the stream before and after the block, over all tokens", none, kPass, true,
       kAny, &PlugBlocks, &SelectByFrobenius},
      {"angular", "consecutive blocks: mean angle between the last token's stream before and after them, over pi", none,
       kPass, false, kAny, &PlugWindow, &SelectByAngle, true},
      {"streamline", "consecutive blocks: 1 - mean cosine of a token's stream before and after them", none, kPass,
       false, kAny, &PlugWindow, &SelectByStreamline, true},
      {"correctable", "error left after the best adapter of rank=R (64) in the block's place", rank, kPasses, false,
       kWhole, &PlugCorrections, &SelectByResidual},
      {"correctable-greedy", "lowest loss with adapters of rank=R in place, one block after another", both, kPasses,
       false, kWhole, &PlugCorrections, &SelectByCorrectedLoss},
      {"search", "search over whole choices for minutes=N (10): lowest divergence with adapters of rank=R in place",
       budget, kPasses, false, kWhole, &PlugSearch, &SelectBySearch},
      {"ppl", "perplexity with only this block removed (tokens=N bounds the text)", tokens, kPasses, false, kAny,
       nullptr, &SelectByPerplexity},
      {"ppl-greedy", "the same again on what is left after each removal (SLEB)", tokens, kPasses, false, kAny, nullptr,
       &SelectByPerplexityGreedy},
      {"prune-comp",
       "bi again after each removal, with the stream rescaled for the removed blocks (Prune&Comp)",
       none,
       kPasses,
       false,
       {},
       nullptr,
       &SelectByPruneComp},
      {"taylor", "sum of |w dL/dw| over the block's projections and norms, L the loss of tokens=N (8192)", some_tokens,
       kPasses, false, kWhole, &PlugTaylor, &Lowest<TaylorScores>},
      {"reverse", "deepest first", none, kShape, false, kAny, nullptr, &Lowest<ReverseScores, &PickInOrder>},
      {"reverse*", "deepest first, the final block kept", none, kShape, false, kAny, nullptr,
       &Lowest<ReverseKeepLastScores, &PickInOrder>},
      {"magnitude-l1", "sum of |w| over the block's projections and norms", none, kWeights, false, kWhole, nullptr,
       &Lowest<MagnitudeL1Scores>},
      {"magnitude-l2", "sum of w^2 over the block's projections and norms", none, kWeights, false, kWhole, nullptr,
       &Lowest<MagnitudeL2Scores>},
      {"random", "seeded", none, kShape, false, kAny, nullptr, &Lowest<RandomScores, &PickInOrder>},
  };
  return table;
}

const CriterionOption* Criterion::OptionNamed(std::string_view option) const {
  for (const CriterionOption& known : options)
    if (option == known.name) return &known;
  return nullptr;
}

const Criterion* CriterionNamed(std::string_view name) {
  for (const Criterion& criterion : Criteria())
    if (name == criterion.name) return &criterion;
  return nullptr;
}

const Criterion& FindCriterion(std::string_view name) {
  if (const Criterion* criterion = CriterionNamed(name)) return *criterion;
  std::string known;
  for (const Criterion& criterion : Criteria()) known += fmt::format("{}, ", criterion.name);
  FailUsage(Field("prune"), "unknown criterion \"{}\"; known: {}layers=", name, known);
}

void CheckCriterion(const PruneSpec& spec, SettingSet used) {
  if (!spec.layers.empty()) return;
  const Criterion& criterion = FindCriterion(spec.criterion);
  for (const Setting setting : {Setting::kHalves, Setting::kSplit, Setting::kUpdateNorms}) {
    if (!used.has(setting) || criterion.accepts.has(setting)) continue;
    std::vector<std::string_view> accepting;
    for (const Criterion& other : Criteria())
      if (other.accepts.has(setting)) accepting.emplace_back(other.name);
    accepting.emplace_back("layers=");
    RefuseSetting(RowOf(setting), "prune", fmt::format("the criterion {}", criterion.name), accepting);
  }
}

void CheckParallelBlocks(const PruneSpec& spec, const ModelConfig& config) {
  if (config.block.parallel && spec.halves())
    FailUsage(
        Field("prune"),
        "the model has parallel blocks, whose attention and MLP read the same stream: half of one cannot be removed "
        "alone; remove whole blocks");
}

bool NeedCalibration(const std::vector<PruneSpec>& specs) {
  return std::any_of(specs.begin(), specs.end(), [](const PruneSpec& spec) {
    return spec.layers.empty() && FindCriterion(spec.criterion).needs_calibration();
  });
}

std::vector<int64_t> Ranking(const std::vector<double>& scores, int64_t first, int64_t end) {
  std::vector<int64_t> order(std::max<int64_t>(0, end - first));
  std::iota(order.rbegin(), order.rend(), first);  // deeper first, which a stable sort leaves so among equals
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  return order;
}

std::vector<BlockPart> PickUnits(const std::vector<double>& scores, const Quota& quota) {
  std::vector<double> costs(scores.size());
  for (size_t unit = 0; unit < scores.size(); ++unit) costs[unit] = quota.CostPerSize(unit, scores[unit]);
  return PickInOrder(costs, quota);
}

std::vector<BlockPart> PickInOrder(const std::vector<double>& scores, const Quota& quota) {
  Quota taken = quota;
  for (const int64_t unit : Ranking(scores, quota.first(), quota.end()))
    if (taken.Admits(unit)) taken.Take(unit);
  return taken.Removed();
}

std::vector<BlockPart> PickWindow(const std::vector<double>& scores, const Quota& quota) {
  const int64_t window = quota.count(), begin = Ranking(scores, quota.first(), quota.end() - window + 1).front();
  if (quota.unit() == Unit::kHalf) return PartsBetween(begin, begin + window);
  return PartsBetween(2 * begin, 2 * (begin + window));
}

std::vector<Selection> SelectLayers(const std::vector<PruneSpec>& specs, const CriterionInput& input,
                                    Progress& progress, std::span<Probe* const> others) {
  ProbeSet probes(input, progress);
  std::vector<CriterionTask> tasks;
  for (const PruneSpec& spec : specs) {
    SettingSet used = input.weights->config.block.PlainUpdates() ? SettingSet() : SettingSet{Setting::kUpdateNorms};
    if (spec.halves()) used = used | SettingSet{Setting::kHalves};
    CheckCriterion(spec, used);
    CheckParallelBlocks(spec, input.weights->config);
    if (spec.max_divergence > 0)
      FailUsage(Field("prune"),
                "{}: only a repair finds the amount, because it fits cuts of several sizes; give a number",
                Format(spec));
    tasks.push_back({spec, Quota(spec, *input.weights), input, probes, progress});
    if (!spec.layers.empty()) continue;
    const Criterion& criterion = FindCriterion(spec.criterion);
    Check(!criterion.needs_calibration() || (input.calibration != nullptr && !input.calibration->empty()),
          "criterion {} needs calibration text", spec.criterion);
    if (criterion.plug != nullptr) criterion.plug(tasks.back());
  }
  if (!probes.empty()) {
    Pass pass(input.context, input.weights);
    probes.AddTo(pass);
    for (Probe* const probe : others) pass.Add(*probe);
    pass.Run("selecting layers", *input.calibration, progress);
  }
  std::vector<Selection> selections;
  selections.reserve(tasks.size());
  for (const CriterionTask& task : tasks) selections.push_back(SelectOne(task));
  return selections;
}

Selection SelectLayers(const PruneSpec& spec, const CriterionInput& input, Progress& progress,
                       std::span<Probe* const> others) {
  return std::move(SelectLayers(std::vector{spec}, input, progress, others)[0]);
}

Selection Reselect(const PruneSpec& spec, std::vector<double> scores, const Weights& weights) {
  Selection selection;
  selection.criterion = spec.criterion;
  selection.unit = spec.unit;
  selection.removed = PickUnits(scores, Quota(spec, weights));
  selection.scores = std::move(scores);
  return selection;
}

}  // namespace shiftrt
