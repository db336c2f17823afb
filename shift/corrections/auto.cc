// SPDX-License-Identifier: Apache-2.0
// `--correction auto` fits candidate recipes of lra, refit and joint. Of those whose gain in held-out loss over the
// paper's recipe exceeds twice its standard error, it keeps the one with the lowest loss; if there is none, it keeps
// the paper's recipe.
#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"
#include "shift/measure/heldout_loss.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

// A sequential fit on a quarter of the text that ends this much worse, in nats, than the best recipe is not repeated on
// all of it.
constexpr double kNear = 0.05;
// Held-out tokens that recipes are compared on.
constexpr int64_t kTrialTokens = 8192;
// A recipe that takes a sequential fit is first tried on every fourth batch.
constexpr size_t kStep = 4;

// Every fourth batch, of the fitted ones and of those held out.
CalibrationSet Quarter(const CalibrationSet& calibration) {
  CalibrationSet quarter;
  const auto take = [](const std::vector<Batch>& from, std::vector<Batch>& to, int64_t& tokens) {
    for (size_t b = 0; b < from.size(); b += kStep) {
      to.push_back(from[b]);
      tokens += from[b].size();
    }
  };
  take(calibration.fit, quarter.fit, quarter.fit_tokens);
  take(calibration.heldout, quarter.heldout, quarter.heldout_tokens);
  return quarter;
}

TrialReport ReportOf(const Trial& trial) {
  return {.correction = trial.recipe.correction,
          .calibration = Name(trial.recipe.mode),
          .token_weight = Format(trial.recipe.weighting),
          .factorization = Name(trial.recipe.factorization),
          .lambda = Format(trial.recipe.lambda),
          .recipe = Format(trial.recipe),
          .adapter_parameters = trial.parameters,
          .tokens = trial.tokens,
          .loss = trial.loss,
          .gain = trial.gain,
          .gain_error = trial.error};
}

// Tries, from sums of one pass, token weights none and norm, svd and rrr, and lambda as given and by hold-out. The best
// of these is then tried in sequence and with drift, and refit and joint with its lambda, each in a sequential fit
// on a quarter of the text; the best of these fits is repeated on all of it where it comes near. Rank, span and the
// penalty of the bias are the caller's.
class Search {
 public:
  explicit Search(const FitInput& input)
      : job_(input.job),
        sites_(input.sites),
        options_(input.options),
        quarter_(Quarter(job_.calibration)),
        removed_(Removed(sites_)),
        // Plans may differ from the block before the first site on.
        loss_(job_.context, job_.model.weights, job_.calibration.heldout, kTrialTokens, SequentialFitStart(removed_)) {}

  FittedSites Run() {
    TryIndependent();
    TryInSequence();
    CompleteSpectra(job_.context, best_.reports);
    for (const Trial& trial : trials_) best_.trials.push_back(ReportOf(trial));
    best_.trials[chosen_].chosen = true;
    best_.seconds = seconds_;
    return std::move(best_);
  }

 private:
  const Trial& Lowest() const {
    return *std::min_element(trials_.begin(), trials_.end(),
                             [](const Trial& a, const Trial& b) { return a.loss < b.loss; });
  }

  static std::vector<BlockPart> Removed(const std::vector<Site>& sites) {
    std::vector<BlockPart> removed;
    for (const Site& site : sites)
      for (const BlockPart& part : site.Parts()) removed.push_back(part);
    return removed;
  }

  FitOptions With(const FitRecipe& recipe) const {
    FitOptions options = options_;
    options.factorization = recipe.factorization;
    options.ridge.lambda = recipe.lambda;
    options.spectra = Spectra::kLater;  // only the chosen recipe's are reported
    return options;
  }

  // Returns the loss; the fit that would be chosen so far is kept.
  double Record(const FitRecipe& recipe, FittedSites fitted) {
    DepthPlan plan = CorrectedPlan(job_.layers(), sites_, fitted);
    const std::vector<double> losses = loss_.BySequence(plan);
    seconds_ += fitted.seconds;
    const bool first = trials_.empty();
    if (first) first_losses_ = losses;
    Trial trial = Compared({recipe, fitted.reports.front().tokens}, losses);
    trial.parameters = AdapterParameters(plan);
    if (first || (trial.clear() && trial.loss < trials_[chosen_].loss)) {
      chosen_ = trials_.size();
      best_.plan = std::move(plan);
      best_.reports = std::move(fitted.reports);
    }
    trials_.push_back(trial);
    return trial.loss;
  }

  Trial Compared(Trial trial, const std::vector<double>& losses) const {
    trial.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(loss_.predicted());
    const PairedGain gain = GainOver(first_losses_, losses, loss_.predicted());
    trial.gain = gain.gain;
    trial.error = gain.error;
    return trial;
  }

  // The paper's recipe first.
  void TryIndependent() {
    const std::vector<TokenWeights> weightings = {TokenWeights(), TokenWeights{.norm = true}};
    CalibrationSums sums;
    {
      const Stopwatch watch(seconds_.calibrate);
      CheckMemory(job_.context, std::ssize(weightings) * std::ssize(sites_), job_.hidden(),
                  "a higher limit allows more, and the correction lra takes less");
      for (const TokenWeights& weighting : weightings)
        for (const Site& site : sites_) sums.sites.emplace_back(site, job_.hidden(), SiteInput::kStream, weighting);
      Collect(job_, sums);
    }
    std::vector<std::vector<const SiteSums*>> of(weightings.size());
    for (size_t i = 0; i < sums.sites.size(); ++i) of[i / sites_.size()].push_back(&sums.sites[i]);
    const bool full = options_.rank.kind == RankSpec::Kind::kFull;  // nothing to factorize
    for (size_t w = 0; w < weightings.size(); ++w) {
      const FitRecipe svd{Calibration::kIndependent, weightings[w], Factorization::kSvd, options_.ridge.lambda};
      TryFactorizations(of[w], svd, {full ? std::vector<FitRecipe>{svd} : std::vector<FitRecipe>{svd, Reduced(svd)}});
    }
    if (options_.ridge.lambda.kind == LambdaSpec::Kind::kHoldout) return;
    FitRecipe recipe = Lowest().recipe;
    recipe.lambda = {LambdaSpec::Kind::kHoldout, 0};
    TryFactorizations(of[recipe.weighting.norm ? 1 : 0], recipe, {recipe});
  }

  static FitRecipe Reduced(FitRecipe recipe) {
    recipe.factorization = Factorization::kReducedRank;
    return recipe;
  }

  // Recipes that share the solve of `solve`.
  void TryFactorizations(const std::vector<const SiteSums*>& sums, const FitRecipe& solve,
                         const std::vector<FitRecipe>& recipes) {
    SolvedSites solved = SolveSites(job_.context, sums, With(solve), job_.progress);
    for (const FitRecipe& recipe : recipes) {
      Record(recipe, ReduceSites(job_.context, sums, solved, With(recipe), job_.progress));
      solved.seconds = 0;  // counted once
    }
  }

  ShiftJob JobOf(const CalibrationSet& text) const { return {job_.context, job_.model, text, job_.progress}; }

  // On all of `text`, whose streams are `start`.
  FittedSites FittedInSequence(const FitRecipe& recipe, const CalibrationSet& text, StartStreams start) {
    const ShiftJob job = JobOf(text);
    const FitOptions options = With(recipe);
    const Correction& correction = FindCorrection(recipe.correction);
    if (!correction.fitted_in_sequence())
      return FitInSequence(
          job, sites_, {recipe.mode, recipe.weighting},
          [&](const SiteSums& site, Progress& progress) { return FitSites(job.context, {&site}, options, progress); },
          std::move(start));
    const SiteCorrection in_sequence = InSequence(correction, job, options);
    SequentialFitResult refitted =
        RefitInSequence(job, DepthPlan::Pruned(job.layers(), removed_), removed_,
                        {&in_sequence, Heal::kOff, options.ridge, recipe.weighting}, std::move(start));
    FittedSites fitted;
    fitted.plan = std::move(refitted.plan);
    fitted.reports = std::move(refitted.sites);
    fitted.seconds = refitted.seconds;
    return fitted;
  }

  // Why a correction cannot be fitted in sequence; empty where it can.
  std::string WhyNot(const char* correction, SiteInput input, const LambdaSpec& lambda) const {
    const ModelConfig& config = job_.model.weights->config;
    if (removed_.front().begin() == 0 && input == SiteInput::kActivation)
      return fmt::format("layer {} is removed, and there is no block before it", Name(removed_.front()));
    SettingSet used;
    if (!config.block.PlainUpdates()) used = used | SettingSet{Setting::kUpdateNorms};
    if (options_.ridge.penalize_bias) used = used | SettingSet{Setting::kPenalizedBias};
    if (std::string why = WhyRefused(FindCorrection(correction), used); !why.empty()) return why;
    const int64_t width = std::max(kOutputProjection.Width(input, config), kDownProjection.Width(input, config));
    return WhyNoSequentialFit(job_.context, width, config.hidden, lambda);
  }

  std::vector<FitRecipe> RecipesInSequence(const FitRecipe& best) {
    std::vector<FitRecipe> recipes;
    if (sites_.size() > 1)  // one site alone has nothing removed before it
      for (const Calibration mode : {Calibration::kSequential, Calibration::kDrift}) {
        recipes.push_back(best);
        recipes.back().mode = mode;
      }
    for (const auto& [name, input] :
         {std::pair("refit", SiteInput::kActivation), std::pair("joint", SiteInput::kStreamAndActivation)}) {
      if (const std::string why = WhyNot(name, input, best.lambda); !why.empty()) {
        best_.untried.push_back(fmt::format("{}: {}", name, why));
        continue;
      }
      FitRecipe recipe = Reduced(best);
      recipe.correction = name;
      recipe.weighting = {};  // norm weights make these fits far worse on text with massive activations
      recipes.push_back(recipe);
    }
    return recipes;
  }

  void TryInSequence() {
    const Trial independent = Lowest();
    const std::vector<FitRecipe> recipes = RecipesInSequence(independent.recipe);
    if (recipes.empty()) return;
    StartStreams start;
    {
      const Stopwatch watch(seconds_.calibrate);
      start = StreamsBefore(SequentialFitStart(removed_), job_, "calibrating up to the first removed block");
    }
    const FitRecipe* nearest = nullptr;
    double lowest = independent.loss + kNear;
    for (const FitRecipe& recipe : recipes) {
      const double loss = Record(recipe, FittedInSequence(recipe, quarter_, start.Every(job_.context, kStep)));
      if (loss >= lowest) continue;
      lowest = loss;
      nearest = &recipe;
    }
    // A quarter of a short text is all of it.
    const bool whole = std::ssize(quarter_.fit) == std::ssize(job_.calibration.fit);
    if (nearest != nullptr && !whole) Record(*nearest, FittedInSequence(*nearest, job_.calibration, std::move(start)));
  }

  const ShiftJob& job_;
  const std::vector<Site>& sites_;
  const FitOptions& options_;
  const CalibrationSet quarter_;
  const std::vector<BlockPart> removed_;
  HeldOutLoss loss_;
  std::vector<double> first_losses_;  // losses of the first trial, one per sequence
  std::vector<Trial> trials_;
  size_t chosen_ = 0;  // the index of the trial whose fit is the best one
  FittedSites best_;
  RepairSeconds seconds_;  // the time of all trials together
};

}  // namespace

FittedSites FitAuto(const FitInput& input) { return Search(input).Run(); }

}  // namespace shiftrt
