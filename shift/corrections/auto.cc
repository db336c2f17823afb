// SPDX-License-Identifier: Apache-2.0
// Linear residual adapters by the recipe with the lowest loss on held-out calibration text, where that is surely lower
// than the loss of the paper's recipe.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"
#include "shift/fit/sequential.h"
#include "shift/measure/heldout_loss.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

// A fit in sequence on a quarter of the text this much worse, in nats, than the best one is not tried on all of it.
constexpr double kNear = 0.05;
// Held-out tokens that recipes are compared on.
constexpr int64_t kTrialTokens = 8192;

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

// Tries, from sums of one pass, token weights none and norm, svd and rrr, and lambda as given and by hold-out; then the
// best of them in sequence and with drift on a quarter of the text, and the better of those two on all of it where it
// comes near. Rank, span and the bias's penalty are the caller's.
class Search {
 public:
  explicit Search(const FitInput& input)
      : job_(input.job),
        sites_(input.sites),
        options_(input.options),
        // Plans may differ from the block before the first site on.
        loss_(job_.context, job_.model.weights, job_.calibration.heldout, kTrialTokens,
              std::max<int64_t>(0, sites_.front().layer - 1)) {}

  FittedSites Run() {
    TryIndependent();
    if (sites_.size() > 1) TryInSequence();  // one site alone has nothing removed before it
    best_.seconds = seconds_;
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
    const std::vector<double> losses = loss_.BySequence(CorrectedPlan(job_.layers(), sites_, fitted));
    seconds_ += fitted.seconds;
    const bool first = best_.trials.empty();
    if (first) first_losses_ = losses;
    const Trial trial = Compared({recipe, fitted.reports.front().tokens}, losses);
    if (first || (trial.clear() && trial.loss < best_.trials[best_.chosen_trial].loss)) {
      best_.chosen_trial = best_.trials.size();
      best_.adapters = std::move(fitted.adapters);
      best_.reports = std::move(fitted.reports);
    }
    best_.trials.push_back(trial);
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
    CalibrationSums sums;
    {
      const Stopwatch watch(seconds_.calibrate);
      CheckMemory(job_.context, std::ssize(weightings) * std::ssize(sites_), job_.hidden(),
                  "a higher limit allows more, and the correction lra takes less");
      for (const TokenWeighting& weighting : weightings)
        for (const Site& site : sites_) sums.sites.emplace_back(site, job_.hidden(), SiteInput::kStream, weighting);
      Collect(job_, sums);
    }
    std::vector<std::vector<const SiteSums*>> of(weightings.size());
    for (size_t i = 0; i < sums.sites.size(); ++i) of[i / sites_.size()].push_back(&sums.sites[i]);
    for (size_t w = 0; w < weightings.size(); ++w) {
      Recipe recipe{Calibration::kIndependent, weightings[w], Factorization::kSvd, options_.ridge.lambda};
      const SolvedSites solved = SolveSites(job_.context, of[w], With(recipe), job_.progress);
      Record(recipe, ReduceSites(job_.context, of[w], solved, With(recipe), job_.progress));
      if (options_.rank.kind == RankSpec::Kind::kFull) continue;  // nothing to factorize
      recipe.factorization = Factorization::kReducedRank;
      Record(recipe, ReduceSites(job_.context, of[w], solved, With(recipe), job_.progress));
    }
    if (options_.ridge.lambda.kind == LambdaSpec::Kind::kHoldout) return;
    Recipe recipe = Lowest().recipe;
    recipe.lambda = {LambdaSpec::Kind::kHoldout, 0};
    const std::vector<const SiteSums*>& chosen = of[recipe.weighting.norm ? 1 : 0];
    Record(recipe, FitSites(job_.context, chosen, With(recipe), job_.progress));
  }

  FittedSites InSequence(const Recipe& recipe, const CalibrationSet& text) {
    const ShiftJob job = {job_.context, job_.model, text, job_.progress};
    return FitInSequence(job, sites_, recipe.mode, recipe.weighting, [&](const SiteSums& site, Progress& progress) {
      return FitSites(job.context, {&site}, With(recipe), progress);
    });
  }

  void TryInSequence() {
    const CalibrationSet quarter = Quarter(job_.calibration);
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
    if (nearest.mode != Calibration::kIndependent) Record(nearest, InSequence(nearest, job_.calibration));
  }

  const ShiftJob& job_;
  const std::vector<Site>& sites_;
  const FitOptions& options_;
  HeldOutLoss loss_;
  std::vector<double> first_losses_;  // of the first trial, one per sequence
  FittedSites best_;
  StepSeconds seconds_;  // of all trials
};

}  // namespace

FittedSites FitAuto(const FitInput& input) {
  if (input.options.rank.kind == RankSpec::Kind::kBudget)
    FailUsage(Field("rank"), "{} is spread over sites that are fitted together, which the correction auto does not do",
              Format(input.options.rank));
  return Search(input).Run();
}

}  // namespace shiftrt
