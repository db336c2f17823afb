#include "shift/corrections/automatic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

// A fit in sequence on a quarter of the text this much worse, in nats, than the best one is not tried on all of it.
constexpr double kNear = 0.05;

// Every fourth batch, of the fitted ones and of those held out.
CalibrationSet Quarter(const CalibrationSet& calibration) {
  CalibrationSet quarter;
  const auto take = [](const std::vector<Batch>& from, std::vector<Batch>& to, int64_t& tokens) {
    for (size_t b = 0; b < from.size(); b += 4) {
      to.push_back(from[b]);
      tokens += from[b].size();
    }
  };
  take(calibration.fit, quarter.fit, quarter.fit_tokens);
  take(calibration.heldout, quarter.heldout, quarter.heldout_tokens);
  return quarter;
}

class Search {
 public:
  Search(const Context& context, const Model& model, const CalibrationSet& calibration, const std::vector<Site>& sites,
         const FitOptions& options, HeldOutLoss& loss, Progress& progress)
      : context_(context),
        model_(model),
        calibration_(calibration),
        sites_(sites),
        options_(options),
        loss_(loss),
        progress_(progress) {}

  AutomaticFit Run() {
    TryIndependent();
    if (sites_.size() > 1) TryInSequence();  // one site alone has nothing removed before it
    return std::move(best_);
  }

 private:
  const Trial& Lowest() const {
    return *std::min_element(best_.trials.begin(), best_.trials.end(),
                             [](const Trial& a, const Trial& b) { return a.loss < b.loss; });
  }

  FitOptions With(const Recipe& recipe) const {
    FitOptions options = options_;
    options.factorization = recipe.factorization;
    options.ridge.lambda = recipe.lambda;
    return options;
  }

  // Returns the loss; the fit that would be chosen so far is kept.
  double Record(const Recipe& recipe, FittedSites fitted) {
    const std::vector<double> losses =
        loss_.BySequence(CorrectedPlan(model_.weights->config.layers, sites_, fitted.adapters));
    seconds_.solve += fitted.seconds.solve;
    seconds_.factorize += fitted.seconds.factorize;
    const bool first = best_.trials.empty();
    if (first) first_losses_ = losses;
    const Trial trial = Compared({recipe, fitted.reports.front().tokens}, losses);
    if (first || (trial.clear() && trial.loss < best_.trials[best_.chosen].loss)) {
      best_.chosen = best_.trials.size();
      best_.fitted = std::move(fitted);
    }
    best_.trials.push_back(trial);
    best_.fitted.seconds = seconds_;
    return trial.loss;
  }

  // Sequences are paired, so that what makes one of them hard for every model does not count.
  Trial Compared(Trial trial, const std::vector<double>& losses) const {
    const auto count = static_cast<double>(losses.size()), tokens = static_cast<double>(loss_.predicted());
    double total = 0, gain = 0, squares = 0;
    for (size_t s = 0; s < losses.size(); ++s) {
      total += losses[s];
      gain += first_losses_[s] - losses[s];
    }
    for (size_t s = 0; s < losses.size(); ++s) {
      const double apart = first_losses_[s] - losses[s] - gain / count;
      squares += apart * apart;
    }
    trial.loss = total / tokens;
    trial.gain = gain / tokens;
    trial.error =
        losses.size() > 1 ? std::sqrt(squares * count / (count - 1)) / tokens : std::numeric_limits<double>::infinity();
    return trial;
  }

  // The paper's recipe first.
  void TryIndependent() {
    const std::vector<TokenWeighting> weightings = {TokenWeighting(), TokenWeighting{.norm = true}};
    CollectedSums sums;
    {
      const Stopwatch watch(best_.calibrate_seconds);
      CheckMemory(context_, std::ssize(weightings) * std::ssize(sites_), model_.weights->config.hidden,
                  "--memory allows more, --correction lra does with less");
      for (const TokenWeighting& weighting : weightings)
        for (const Site& site : sites_) {
          sums.sites.emplace_back(site, model_.weights->config.hidden);
          sums.sites.back().weighting = weighting;
        }
      Collect(context_, model_, calibration_, sums, progress_);
    }
    std::vector<std::vector<const SiteSums*>> of(weightings.size());
    for (size_t i = 0; i < sums.sites.size(); ++i) of[i / sites_.size()].push_back(&sums.sites[i]);
    for (size_t w = 0; w < weightings.size(); ++w) {
      Recipe recipe{Calibration::kIndependent, weightings[w], Factorization::kSvd, options_.ridge.lambda};
      const SolvedSites solved = SolveSites(context_, of[w], With(recipe), progress_);
      Record(recipe, ReduceSites(context_, of[w], solved, With(recipe), progress_));
      if (options_.rank.kind == RankSpec::Kind::kFull) continue;  // nothing to factorize
      recipe.factorization = Factorization::kReducedRank;
      Record(recipe, ReduceSites(context_, of[w], solved, With(recipe), progress_));
    }
    if (options_.ridge.lambda.kind == LambdaSpec::Kind::kHoldout) return;
    Recipe recipe = Lowest().recipe;
    recipe.lambda = {LambdaSpec::Kind::kHoldout, 0};
    const std::vector<const SiteSums*>& chosen = of[recipe.weighting.norm ? 1 : 0];
    Record(recipe, FitSites(context_, chosen, With(recipe), progress_));
  }

  FittedSites InSequence(const Recipe& recipe, const CalibrationSet& text) {
    double seconds = 0;
    FittedSites fitted;
    {
      const Stopwatch watch(seconds);
      fitted = FitInSequence(context_, model_, text, sites_, recipe.mode, recipe.weighting, With(recipe), progress_);
    }
    best_.calibrate_seconds += seconds - fitted.seconds.solve - fitted.seconds.factorize;
    return fitted;
  }

  void TryInSequence() {
    const CalibrationSet quarter = Quarter(calibration_);
    const Trial independent = Lowest();
    Recipe nearest = independent.recipe;
    double lowest = independent.loss + kNear;
    for (const Calibration mode : {Calibration::kSequential, Calibration::kDrift}) {
      Recipe recipe = independent.recipe;
      recipe.mode = mode;
      const double loss = Record(recipe, InSequence(recipe, quarter));
      if (loss >= lowest) continue;
      lowest = loss;
      nearest = recipe;
    }
    if (nearest.mode != Calibration::kIndependent) Record(nearest, InSequence(nearest, calibration_));
  }

  const Context& context_;
  const Model& model_;
  const CalibrationSet& calibration_;
  const std::vector<Site>& sites_;
  const FitOptions& options_;
  HeldOutLoss& loss_;
  Progress& progress_;
  std::vector<double> first_losses_;  // of the first trial, a sequence each
  AutomaticFit best_;
  FitSeconds seconds_;
};

}  // namespace

std::string Format(const Recipe& recipe) {
  return fmt::format("{}, token weights {}, {}, lambda {}", Name(recipe.mode), Format(recipe.weighting),
                     Name(recipe.factorization), Format(recipe.lambda));
}

AutomaticFit FitAutomatically(const Context& context, const Model& model, const CalibrationSet& calibration,
                              const std::vector<Site>& sites, const FitOptions& options, HeldOutLoss& loss,
                              Progress& progress) {
  if (options.rank.kind == RankSpec::Kind::kBudget)
    FailUsage("--lra {} goes with sites that are fitted together, not with --correction auto", Format(options.rank));
  return Search(context, model, calibration, sites, options, loss, progress).Run();
}

}  // namespace shiftrt
