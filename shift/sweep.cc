// SPDX-License-Identifier: Apache-2.0
#include "shift/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/check.h"
#include "runtime/random.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

template <typename T>
void Shuffle(std::vector<T>& items, uint64_t seed) {
  Random random(seed);
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(static_cast<int64_t>(i))]);
}

// Adapters that are fitted from sums of the original model's stream alone.
bool FromSharedSums(const Recipe& recipe) {
  const Correction& correction = CorrectionOf(recipe);  // the sums are those of the stream as it is
  return correction.takes_recipe() && !correction.normed_adapters() && recipe.mode == Calibration::kIndependent &&
         recipe.heal == Heal::kOff;
}

bool SameSetting(const Recipe& a, const Recipe& b) { return SettingText(a) == SettingText(b); }

template <typename A, typename B>
std::vector<std::pair<A, B>> Pairs(const std::vector<A>& a, const std::vector<B>& b) {
  std::vector<std::pair<A, B>> pairs;
  for (const A& x : a)
    for (const B& y : b) pairs.emplace_back(x, y);
  return pairs;
}

double Mean(const std::vector<FitReport>& sites, double FitReport::*value) {
  double mean = sites.empty() ? std::nan("") : 0.0;
  for (const FitReport& site : sites) mean += site.*value / static_cast<double>(sites.size());
  return mean;
}

class Sweeper {
 public:
  Sweeper(const SweepJob& job, const SweepAxes& axes, const SweepSource& source)
      : job_(job), axes_(axes), source_(source), combinations_(Combinations(axes)) {
    for (const auto& [field, empty] :
         {std::pair("prunes", axes.prunes.empty()), {"seeds", axes.seeds.empty()}, {"recipes", combinations_.empty()}})
      if (empty) FailUsage(Field(field), "there is none");
    for (const Recipe& recipe : combinations_)
      if (recipe.span || recipe.gate || recipe.merge != Merge::kOff || recipe.gram.used())
        FailUsage(Field("recipes"), "a sweep has no spans, gate, merging or files of sums");
    for (const Recipe& recipe : combinations_)
      for (const PruneSpec& prune : axes.prunes) CheckOptions(Cell(recipe, prune, 0, 0).recipe, Config());
    sizes_ = axes.samples;
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
    if (sizes_.empty() || sizes_.front() < 1)
      FailUsage(Field("samples"), "a sweep needs a calibration size of at least 1 sample");
  }

  void Run() {
    for (uint64_t seed : axes_.seeds) RunSeed(seed);
  }

 private:
  using SumsByWeighting = std::map<std::string, CalibrationSums>;

  const ModelConfig& Config() const { return job_.model.weights->config; }

  // The settings of a cell, and its size; without results.
  static SweepRow Cell(const Recipe& recipe, const PruneSpec& prune, uint64_t seed, int64_t samples) {
    SweepRow row;
    row.recipe = recipe;
    row.recipe.prune = prune;
    row.recipe.seed = seed;
    row.samples = samples;
    return row;
  }

  // Takes a row that is known already.
  bool Take(const SweepRow& cell) {
    const SweepRow* const found = source_.known ? source_.known(cell.recipe, cell.samples) : nullptr;
    if (found == nullptr) return false;
    SweepRow row = *found;
    row.recipe = cell.recipe;
    measured_[""] = row.original;
    measured_[Names(row.removed)] = row.pruned;
    source_.row(row);
    return true;
  }

  bool AllKnown(uint64_t seed) const {
    if (!source_.known) return false;
    for (const int64_t samples : sizes_)
      for (const PruneSpec& prune : axes_.prunes)
        for (const Recipe& recipe : combinations_)
          if (source_.known(Cell(recipe, prune, seed, samples).recipe, samples) == nullptr) return false;
    return true;
  }

  void RunSeed(uint64_t seed) {
    if (AllKnown(seed)) {
      for (const int64_t samples : sizes_)
        for (const PruneSpec& prune : axes_.prunes)
          for (const Recipe& recipe : combinations_) Take(Cell(recipe, prune, seed, samples));
      return;
    }
    CalibrationSet set = source_.open(seed, sizes_.back());
    Shuffle(set.fit, seed);  // so that a smaller size is not the beginning of the text
    const std::vector<Selection> selections =
        SelectLayers(axes_.prunes, {job_.context, job_.model.weights, &set.fit, seed}, job_.progress);
    SumsByWeighting sums = EmptySums(selections);
    const std::vector<Batch> all = std::move(set.fit);
    // Sizes beyond a short text give one row, that of all of it.
    const auto available = static_cast<int64_t>(all.size());
    const bool is_short = available < CountCalibration(sizes_.back(), 1, 1).fit_samples;
    int64_t done = 0;
    for (int64_t samples : sizes_) {
      const int64_t fitted = std::min(CountCalibration(samples, 1, 1).fit_samples, available);
      if (is_short && done == available) continue;
      done = fitted;
      set.fit.assign(all.begin(), all.begin() + fitted);
      set.fit_tokens = 0;
      for (const Batch& batch : set.fit) set.fit_tokens += batch.size();
      const ShiftJob job = {job_.context, job_.model, set, job_.progress};
      for (auto& [weighting, of] : sums) Collect(job, of);
      for (size_t s = 0; s < selections.size(); ++s)
        for (const Recipe& recipe : combinations_) {
          SweepRow row = Cell(recipe, axes_.prunes[s], seed, samples);
          if (Take(row)) continue;
          row.removed = selections[s].removed;
          Fill(row, job, sums);
        }
    }
  }

  // Empty sums of every layer that any selection removes.
  SumsByWeighting EmptySums(const std::vector<Selection>& selections) const {
    const auto by_place = [](const BlockPart& a, const BlockPart& b) {
      return std::pair(a.begin(), a.end()) < std::pair(b.begin(), b.end());
    };
    std::set<BlockPart, decltype(by_place)> parts(by_place);
    for (const Selection& selection : selections) parts.insert(selection.removed.begin(), selection.removed.end());
    const std::vector<BlockPart> removed(parts.begin(), parts.end());
    SumsByWeighting sums;
    std::vector<Recipe> shared = combinations_;
    std::erase_if(shared, [](const Recipe& recipe) { return !FromSharedSums(recipe); });
    for (const Recipe& recipe : shared) sums[Format(recipe.weighting)];
    CheckMemory(job_.context, std::ssize(sums) * std::ssize(removed), Config().hidden,
                "a higher limit allows more, and fewer criteria and token weights at once take less");
    for (const Recipe& recipe : shared) {
      CalibrationSums& of = sums[Format(recipe.weighting)];
      of = CalibrationSums::Empty(removed, Config().hidden);
      for (SiteSums& site : of.sites) site.weighting = recipe.weighting;
    }
    return sums;
  }

  void Fill(SweepRow& row, const ShiftJob& job, const SumsByWeighting& sums) {
    const int64_t layers = job.layers();
    Recipe recipe = row.recipe;
    const FitOptions options = FitOptionsOf(recipe, Spectra::kNever);  // a row has no singular values
    std::vector<FitReport> sites;
    DepthPlan corrected;
    if (FromSharedSums(recipe)) {
      const std::vector<Site> of = SitesOf(row.removed);
      const CalibrationSums& collected = sums.at(Format(recipe.weighting));
      FittedSites fitted = CorrectionOf(recipe).fit({job, of, collected.Sites(row.removed), options});
      corrected = CorrectedPlan(layers, of, fitted);
      sites = FitsOf(fitted.reports);
    } else {
      recipe.prune = PruneSpec();
      recipe.prune.layers = row.removed;
      ShiftResult result = Shift(job, recipe, options.spectra);
      corrected = std::move(result.corrected);
      sites = std::move(result.sites);
      if (const TrialReport* const trial = ChosenOf(result.trials)) row.chosen = trial->recipe;
    }
    row.tokens = sites.empty() ? 0 : sites.front().tokens;
    row.parameters = AdapterParameters(corrected);
    row.r2_fit = Mean(sites, &FitReport::r2_fit);
    row.r2_heldout = Mean(sites, &FitReport::r2_heldout);
    row.original = Measured({}, DepthPlan::Original(layers));
    row.pruned = Measured(row.removed, DepthPlan::Pruned(layers, row.removed));
    row.corrected = corrected == DepthPlan::Pruned(layers, row.removed) ? row.pruned : source_.measure(corrected);
    source_.row(row);
  }

  // Measures a plan without adapters once: plans that leave out the same blocks are equal.
  Quality Measured(const std::vector<BlockPart>& removed, const DepthPlan& plan) {
    const auto found = measured_.find(Names(removed));
    return found != measured_.end() ? found->second : measured_[Names(removed)] = source_.measure(plan);
  }

  const SweepJob& job_;
  const SweepAxes& axes_;
  const SweepSource& source_;
  const std::vector<Recipe> combinations_;
  std::vector<int64_t> sizes_;
  std::map<std::string, Quality> measured_;  // the key names the removed layers
};

struct Spread {
  double mean = 0, deviation = 0;
};

template <typename Value>
Spread Over(const std::vector<const SweepRow*>& rows, const Value& value) {
  Spread spread;
  const auto count = static_cast<double>(rows.size());
  for (const SweepRow* row : rows) spread.mean += value(*row) / count;
  for (const SweepRow* row : rows) spread.deviation += (value(*row) - spread.mean) * (value(*row) - spread.mean);
  spread.deviation = rows.size() > 1 ? std::sqrt(spread.deviation / (count - 1)) : 0.0;
  return spread;
}

std::string Chosen(const std::vector<const SweepRow*>& rows) {
  std::vector<std::string> chosen;
  for (const SweepRow* row : rows)
    if (!row->chosen.empty() && std::find(chosen.begin(), chosen.end(), row->chosen) == chosen.end())
      chosen.push_back(row->chosen);
  return fmt::format("{}", fmt::join(chosen, "; "));
}

// Mean and deviation.
std::pair<Quality, Quality> QualityOver(const std::vector<const SweepRow*>& rows, Quality SweepRow::*of) {
  const Spread perplexity = Over(rows, [&](const SweepRow& row) { return (row.*of).perplexity; });
  const Spread accuracy = Over(rows, [&](const SweepRow& row) { return (row.*of).accuracy; });
  return {{.perplexity = perplexity.mean, .accuracy = accuracy.mean},
          {.perplexity = perplexity.deviation, .accuracy = accuracy.deviation}};
}

}  // namespace

std::vector<Recipe> Combinations(const SweepAxes& axes) {
  std::vector<Recipe> all;
  const auto add = [&](const Recipe& recipe) {
    Recipe normal = Normalized(recipe);
    normal.text = {};
    if (std::none_of(all.begin(), all.end(), [&](const auto& known) { return SameSetting(known, normal); }))
      all.push_back(std::move(normal));
  };
  for (const Recipe& recipe : axes.recipes) add(recipe);
  if (!axes.recipes.empty()) return all;
  Recipe recipe = {.penalize_bias = axes.penalize_bias};
  for (const std::string& correction : axes.corrections)
    for (Calibration mode : axes.modes)
      for (const TokenWeights& weighting : axes.weightings)
        for (const LambdaSpec& lambda : axes.lambdas)
          for (Factorization factorization : axes.factorizations)
            for (const auto& [rank, heal] : Pairs(axes.ranks, axes.heals)) {
              recipe.correction = correction;
              recipe.heal = heal;
              recipe.mode = mode;
              recipe.weighting = weighting;
              recipe.lambda = lambda;
              recipe.factorization = factorization;
              recipe.rank = rank;
              add(recipe);
            }
  return all;
}

void Sweep(const SweepJob& job, const SweepAxes& axes, const SweepSource& source) { Sweeper(job, axes, source).Run(); }

std::vector<SweepSummary> Summarize(const std::vector<SweepRow>& rows) {
  std::vector<std::vector<const SweepRow*>> groups;
  for (const SweepRow& row : rows) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return SameSetting(g.front()->recipe, row.recipe) && g.front()->samples == row.samples;
    });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(&row);
  }
  std::vector<SweepSummary> summaries;
  for (const auto& group : groups) {
    const auto [pruned, pruned_deviation] = QualityOver(group, &SweepRow::pruned);
    const auto [corrected, corrected_deviation] = QualityOver(group, &SweepRow::corrected);
    summaries.push_back({*group.front(), std::ssize(group), QualityOver(group, &SweepRow::original).first, pruned,
                         corrected, pruned_deviation, corrected_deviation,
                         Over(group, [](const SweepRow& row) { return row.r2_fit; }).mean,
                         Over(group, [](const SweepRow& row) { return row.r2_heldout; }).mean, Chosen(group)});
  }
  return summaries;
}

}  // namespace shiftrt
