#include "shift/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "runtime/check.h"
#include "runtime/random.h"
#include "shift/collect.h"

namespace shiftrt {

namespace {

// Fitted samples of a calibration of `samples`, of which every eighth is held out.
int64_t Fitted(int64_t samples) { return samples < 8 ? std::max<int64_t>(1, samples - 1) : samples - samples / 8; }

template <typename T>
void Shuffle(std::vector<T>& items, uint64_t seed) {
  Random random(seed);
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(static_cast<int64_t>(i))]);
}

class Sweeper {
 public:
  Sweeper(const Context& context, const Model& model, const SweepAxes& axes, const SweepSource& source,
          Progress& progress)
      : context_(context), model_(model), axes_(axes), source_(source), progress_(progress) {
    for (const RankSpec& rank : axes.ranks) CheckRank(rank, model.weights->config.hidden);
    sizes_ = axes.samples;
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
    Check(!sizes_.empty() && sizes_.front() >= 1, "a sweep needs a calibration size of at least 1 sample");
  }

  void Run() {
    for (uint64_t seed : axes_.seeds) RunSeed(seed);
  }

 private:
  void RunSeed(uint64_t seed) {
    CalibrationSet set = source_.open(seed, sizes_.back());
    Shuffle(set.fit, seed);  // so that a smaller size is not the beginning of the text
    const std::vector<Selection> selections =
        SelectLayers(axes_.prunes, {context_, model_.weights, &set.fit, seed}, progress_);
    std::set<int64_t> layers;
    for (const Selection& selection : selections) layers.insert(selection.removed.begin(), selection.removed.end());
    CollectedSums sums = CollectedSums::Empty({layers.begin(), layers.end()}, model_.weights->config.hidden);
    const std::vector<Batch> all = std::move(set.fit);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int64_t fitted = std::min(Fitted(sizes_[i]), static_cast<int64_t>(all.size()));
      if (i > 0 && fitted == sums.fit_batches) continue;  // the text has no more
      set.fit.assign(all.begin(), all.begin() + fitted);
      Collect(context_, model_, set, sums, progress_);
      for (size_t s = 0; s < selections.size(); ++s) FitAll(axes_.prunes[s], selections[s], sums, sizes_[i], seed);
    }
  }

  void FitAll(const PruneSpec& prune, const Selection& selection, const CollectedSums& sums, int64_t samples,
              uint64_t seed) {
    SweepRow row;
    row.prune = prune;
    row.removed = selection.removed;
    row.samples = samples;
    row.seed = seed;
    const std::vector<const SiteSums*> sites = sums.Sites(selection.removed);
    for (const LambdaSpec& lambda : axes_.lambdas)
      for (Factorization factorization : axes_.factorizations)
        for (const RankSpec& rank : axes_.ranks) {
          row.lambda = lambda;
          row.factorization = factorization;
          row.rank = rank;
          Fit(sites, row);
        }
  }

  void Fit(const std::vector<const SiteSums*>& sites, SweepRow& row) {
    const int64_t layers = model_.weights->config.layers;
    FitOptions options;
    options.ridge = {row.lambda, axes_.penalize_bias};
    options.rank = row.rank;
    options.factorization = row.factorization;
    const FittedSites fitted = FitSites(context_, sites, options, progress_);
    row.tokens = fitted.reports.front().tokens;
    row.parameters = 0;
    row.r2_fit = row.r2_heldout = 0;
    for (size_t i = 0; i < sites.size(); ++i) {
      row.parameters += fitted.adapters[i]->parameters();
      row.r2_fit += fitted.reports[i].r2_fit / static_cast<double>(sites.size());
      row.r2_heldout += fitted.reports[i].r2_heldout / static_cast<double>(sites.size());
    }
    row.original = Measured({}, DepthPlan::Original(layers));
    row.pruned = Measured(row.removed, DepthPlan::Pruned(layers, row.removed));
    row.corrected = source_.measure(DepthPlan::Corrected(layers, row.removed, fitted.adapters));
    source_.row(row);
  }

  // Without adapters a plan is what it leaves out: measured once.
  double Measured(const std::vector<int64_t>& removed, const DepthPlan& plan) {
    const auto found = measured_.find(removed);
    return found != measured_.end() ? found->second : measured_[removed] = source_.measure(plan);
  }

  const Context& context_;
  const Model& model_;
  const SweepAxes& axes_;
  const SweepSource& source_;
  Progress& progress_;
  std::vector<int64_t> sizes_;
  std::map<std::vector<int64_t>, double> measured_;
};

bool SameSetting(const SweepRow& a, const SweepRow& b) {
  return a.prune.text == b.prune.text && Format(a.lambda) == Format(b.lambda) && a.factorization == b.factorization &&
         Format(a.rank) == Format(b.rank) && a.samples == b.samples;
}

struct Spread {
  double mean = 0, deviation = 0;
};

Spread Over(const std::vector<const SweepRow*>& rows, double SweepRow::*value) {
  Spread spread;
  const auto count = static_cast<double>(rows.size());
  for (const SweepRow* row : rows) spread.mean += row->*value / count;
  for (const SweepRow* row : rows) spread.deviation += (row->*value - spread.mean) * (row->*value - spread.mean);
  spread.deviation = rows.size() > 1 ? std::sqrt(spread.deviation / (count - 1)) : 0.0;
  return spread;
}

}  // namespace

void Sweep(const Context& context, const Model& model, const SweepAxes& axes, const SweepSource& source,
           Progress& progress) {
  Sweeper(context, model, axes, source, progress).Run();
}

std::vector<SweepSummary> Summarize(const std::vector<SweepRow>& rows) {
  std::vector<std::vector<const SweepRow*>> groups;
  for (const SweepRow& row : rows) {
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return SameSetting(*g.front(), row); });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(&row);
  }
  std::vector<SweepSummary> summaries;
  for (const auto& group : groups) {
    const Spread pruned = Over(group, &SweepRow::pruned), corrected = Over(group, &SweepRow::corrected);
    summaries.push_back({*group.front(), static_cast<int64_t>(group.size()), Over(group, &SweepRow::original).mean,
                         pruned.mean, corrected.mean, pruned.deviation, corrected.deviation,
                         Over(group, &SweepRow::r2_fit).mean, Over(group, &SweepRow::r2_heldout).mean});
  }
  return summaries;
}

}  // namespace shiftrt
