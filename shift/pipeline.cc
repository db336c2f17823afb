// SPDX-License-Identifier: Apache-2.0
#include "shift/pipeline.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "engine/loss.h"
#include "runtime/check.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"
#include "shift/largest_cut.h"
#include "shift/measure/gain.h"
#include "shift/quantise/quantise.h"
#include "shift/refit/fold.h"
#include "shift/selection_pass.h"
#include "shift/sums/collect.h"
#include "shift/sums/gram_file.h"

namespace shiftrt {

namespace {

// The settings that the sums of two runs must have in common if they are to be added.
std::string SumsSettings(Products precision, const TokenWeights& weighting) {
  const char* const products = precision == Products::kBFloat16 ? ", products in bfloat16" : "";
  return weighting.uniform() ? fmt::format("independent{}", products)
                             : fmt::format("independent, token weights {}{}", Format(weighting), products);
}

// Layer scores worth keeping with the sums: those that took a pass over the same text.
std::map<std::string, std::vector<double>> ScoresOf(const Selection& selection) {
  if (selection.scores.empty() || selection.unit == Unit::kHalf ||
      !FindCriterion(selection.criterion).scores_stand_alone)
    return {};
  return {{selection.criterion, selection.scores}};
}

// The criterion whose choice is compared with that of `bi`.
constexpr const char* kOfRuns = "streamline";

class Pipeline {
 public:
  Pipeline(const ShiftJob& job, const Recipe& recipe, Spectra spectra)
      : job_(job), recipe_(recipe), correction_(CorrectionOf(recipe)), options_(FitOptionsOf(recipe, spectra)) {}

  ShiftResult Run() {
    if (!recipe_.gram.load.empty()) Load();
    CheckText();
    result_.calibration = recipe_.gram.load.empty() ? job_.calibration.source : loaded_.origin.source;
    Select();
    result_.pruned = DepthPlan::Pruned(job_.layers(), result_.selection.removed);
    if (RoundsFirst()) Round(result_.pruned);
    Correct();
    if (recipe_.gate) DropWhatHarms();
    if (MeasuresGain()) WeighRepair();
    if (recipe_.quantise.any()) Round(result_.corrected);
    if (recipe_.merge != Merge::kOff) MergeNeighbours();
    WarnOfCorrections();
    // Work that is not dealt out is done in every process, and CPUs of different kinds may round it differently.
    CheckSame(job_.context, "fit", result_.corrected.Fingerprint());
    return std::move(result_);
  }

 private:
  std::vector<Site> Runs() const { return RunsOf(result_.selection.removed); }

  void Load() {
    loaded_ = LoadSums(recipe_.gram.load);
    CheckModel(loaded_, job_.model);
    // A fit takes sums of either precision.
    const std::string float32 = SumsSettings(Products::kFloat32, recipe_.weighting);
    if (loaded_.origin.settings != float32 &&
        loaded_.origin.settings != SumsSettings(Products::kBFloat16, recipe_.weighting))
      FailUsage(Field("gram.load"), "{} has sums of \"{}\", but \"{}\" is asked for", recipe_.gram.load[0].string(),
                loaded_.origin.settings, float32);
  }

  // True if the files of sums have the scores by which layers are selected.
  bool Scored() const { return recipe_.prune.unit == Unit::kBlock && loaded_.scores.contains(recipe_.prune.criterion); }

  void CheckText() const {
    if (job_.calibration.fit.empty() && ReadsText(recipe_, Scored()))
      FailUsage(Field("calibration"), "there is no calibration text, which these options need");
    if (recipe_.gate && PredictedTokens(job_.calibration.heldout) == 0)
      FailUsage(Field("gate"), "it needs held-out calibration text: more samples, or longer ones");
  }

  void Select() {
    const Stopwatch watch(result_.seconds.select);
    if (Scored()) {
      result_.selection = Reselect(recipe_.prune, loaded_.scores.at(recipe_.prune.criterion), *job_.model.weights);
      return;
    }
    std::vector<PruneSpec> others;
    if (ComparesChoices()) others.emplace_back(recipe_.prune).criterion = kOfRuns;
    std::vector<Selection> selected = shared_.Select(job_, recipe_, others);
    result_.selection = std::move(selected.front());
    if (others.empty() || selected.back().removed == result_.selection.removed) return;
    result_.other.emplace().criterion = kOfRuns;
    result_.other->removed = std::move(selected.back().removed);
  }

  // True if the choice of `streamline` is to be compared with that of `bi`, which the same pass finds. Its blocks cost
  // two real models 27% and 65% of the log-perplexity that those of `bi` cost (docs/results/qwen.md).
  bool ComparesChoices() const {
    const PruneSpec& prune = recipe_.prune;
    return prune.criterion == "bi" && prune.unit == Unit::kBlock && (prune.ratio > 0 || prune.count > 0) &&
           !recipe_.quantise.any() && MeasuresGain();
  }

  // True if the losses before and after the repair are measured.
  bool MeasuresGain() const {
    const bool corrects = correction_.makes != Makes::kNothing || recipe_.heal != Heal::kOff;
    return recipe_.benefit != Benefit::kUnmeasured && corrects && !job_.model.weights->split() &&
           PredictedTokens(job_.calibration.heldout) > 0;
  }

  // True if the repair is fitted to rounded blocks: only a sequential fit runs blocks that are not the
  // original's.
  bool RoundsFirst() const {
    const bool in_sequence =
        correction_.fitted_in_sequence() || (correction_.needs_sums() && recipe_.mode != Calibration::kIndependent);
    return recipe_.quantise.any() && recipe_.quantise.when == QuantiseWhen::kBefore && in_sequence;
  }

  // Rounds what is not rounded yet.
  void Round(DepthPlan& plan) {
    const Stopwatch watch(result_.seconds.quantise);
    QuantisedPlan rounded = Quantise(job_, plan, recipe_.quantise);
    plan = std::move(rounded.plan);
    // The second time rounds what the repair changed; the report is of the first, which rounded all matrices.
    if (!result_.quantised) {
      result_.quantised = std::move(rounded.report);
    } else {
      result_.quantised->bytes_after = rounded.report.bytes_after;
      result_.quantised->eight_bits += rounded.report.eight_bits;
    }
  }

  void Correct() {
    const bool each_block = correction_.per_block() && !recipe_.span;
    const std::vector<Site> sites = each_block ? SitesOf(result_.selection.removed) : Runs();
    start_ = shared_.TakeStreams(RoundsFirst() ? 0 : SequentialFitStart(result_.selection.removed));
    if (correction_.fitted_in_sequence()) return RunSequentialFit(result_.pruned);
    FittedSites fitted = !correction_.needs_sums()                   ? Fit(sites, {}, job_.progress)
                         : recipe_.mode != Calibration::kIndependent ? FitInSequence(sites)
                         : recipe_.gram.used()                       ? FitFromFiles(sites)
                                                                     : FitIndependently(sites);
    result_.corrected = WithTensorsOf(result_.pruned, CorrectedPlan(job_.layers(), sites, fitted));
    result_.sites = FitsOf(fitted.reports);
    result_.trials = std::move(fitted.trials);
    result_.untried = std::move(fitted.untried);
    result_.seconds += fitted.seconds;
    if (recipe_.heal != Heal::kOff) RunSequentialFit(DepthPlan(result_.corrected));  // it replaces result_.corrected
  }

  // Says where a correction explains nothing of held-out text. A mean update alone has R2 0 by definition.
  void WarnOfCorrections() {
    constexpr double kNothing = 0.01;
    for (FitReport& site : result_.sites) {
      if (std::isnan(site.r2_heldout) || site.r2_heldout >= kNothing ||
          (site.rank == 0 && !correction_.fitted_in_sequence()))
        continue;
      if (!site.warning.empty()) site.warning += "; ";
      site.warning += fmt::format(
          "warning: the correction explains nothing of held-out text (R2 {:.3f}): give more calibration text, or text "
          "that is more like what the model is used for",
          site.r2_heldout);
    }
  }

  // Fits what is fitted from activations: the correction of the runs that `plan` leaves bare, and what is healed.
  void RunSequentialFit(const DepthPlan& plan) {
    std::optional<SiteCorrection> correction;
    if (correction_.fitted_in_sequence()) correction = InSequence(correction_, job_, options_);
    SequentialFitResult fitted =
        RefitInSequence(job_, plan, result_.selection.removed,
                        {correction ? &*correction : nullptr, recipe_.heal, options_.ridge, recipe_.weighting},
                        std::exchange(start_, std::nullopt));
    result_.corrected = std::move(fitted.plan);
    result_.corrected.output = plan.output;
    if (correction_.fitted_in_sequence()) result_.sites = FitsOf(fitted.sites);
    result_.healed = FitsOf(fitted.healed);
    result_.seconds += fitted.seconds;
    if (!result_.healed.empty() && !job_.calibration.heldout.empty()) KeepHealingIfItHelps(plan);
  }

  // `before`: the plan that was healed.
  void KeepHealingIfItHelps(const DepthPlan& before) {
    const Stopwatch watch(result_.seconds.calibrate);
    HeldOutLoss loss = LossOnHeldOut();
    DepthPlan without = Unhealed(result_.corrected, before, result_.healed, job_.model.weights);
    GateVerdict& verdict = result_.healing.emplace();
    for (const FitReport& fit : result_.healed)
      if (const int64_t layer = fit.layers.front().layer; verdict.parts.empty() || verdict.parts.back().layer != layer)
        verdict.parts.emplace_back(layer);
    verdict.with = loss(result_.corrected);
    verdict.without = loss(without);
    verdict.kept = verdict.with <= verdict.without;
    if (!verdict.kept) result_.corrected = std::move(without);
  }

  FittedSites Fit(const std::vector<Site>& sites, const std::vector<const SiteSums*>& sums, Progress& progress) const {
    const ShiftJob job = {job_.context, job_.model, job_.calibration, progress};
    return correction_.fit({job, sites, sums, options_});
  }

  FittedSites FitInSequence(const std::vector<Site>& sites) {
    return shiftrt::FitInSequence(
        job_, sites, {recipe_.mode, recipe_.weighting, InputOfSites(), &result_.pruned},
        [&](const SiteSums& site, Progress& progress) { return Fit({site.site}, {&site}, progress); },
        std::exchange(start_, std::nullopt));
  }

  FittedSites FitFromFiles(const std::vector<Site>& sites) {
    CalibrationSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      sums = recipe_.gram.load.empty() ? CollectIntoFile() : std::move(loaded_.sums);
    }
    return Fit(sites, sums.Sites(result_.selection.removed), job_.progress);
  }

  CalibrationSums CollectIntoFile() {
    const std::vector<BlockPart> layers =
        recipe_.gram.all_layers ? PartsBetween(0, 2 * job_.layers()) : result_.selection.removed;
    // Half as much again: the file takes both triangles of every Gram.
    CheckMemory(job_.context, (3 * std::ssize(layers) + 1) / 2, job_.hidden(),
                "a higher limit allows more, and several files, of some layers each, take less");
    SavedSums wanted =
        NewSavedSums(job_, layers, SumsSettings(job_.context.products, recipe_.weighting), ScoresOf(result_.selection));
    for (SiteSums& site : wanted.sums.sites) site.weighting = recipe_.weighting;
    return shiftrt::CollectIntoFile(job_, std::move(wanted), recipe_.gram.save).sums;
  }

  // Fits as many sites at once as memory has room for their sums. Each group of sites takes a pass over the text.
  FittedSites FitIndependently(const std::vector<Site>& sites) {
    if (std::optional<CalibrationSums> collected = shared_.TakeSums(sites))
      return FitTogether(sites, {}, *std::move(collected));
    CheckMemory(job_.context, 1, job_.hidden(), "a higher limit allows more");
    if (options_.rank.kind == RankSpec::Kind::kBudget && correction_.has_rank())
      CheckMemory(job_.context, std::ssize(sites), job_.hidden(),
                  "a higher limit allows more, and a rank by number or energy takes one site at a time");
    const std::vector<Site> runs = RunsToMeasure();
    const auto room = static_cast<size_t>(std::max<int64_t>(1, SitesInMemory(job_.context, job_.hidden())));
    if (sites.size() + runs.size() <= room) return FitTogether(sites, runs);
    FittedSites fitted;
    for (size_t first = 0; first < sites.size(); first += room) {
      const auto group = std::span(sites).subspan(first, std::min(room, sites.size() - first));
      fitted += FitTogether({group.begin(), group.end()}, {});
    }
    return fitted;
  }

  // The runs that will be merged.
  std::vector<Site> RunsToMeasure() const {
    std::vector<Site> runs = recipe_.merge == Merge::kOff ? std::vector<Site>() : Runs();
    std::erase_if(runs, [](const Site& run) { return run.blocks == 1; });
    return runs;
  }

  // The inputs of the sums.
  SiteInput InputOfSites() const {
    return correction_.needs == Needs::kMlpSums      ? SiteInput::kMlpBefore
           : correction_.needs == Needs::kNormedSums ? SiteInput::kNormed
                                                     : SiteInput::kStream;
  }

  // Keeps the sums of `runs`, which the same pass gives. `sums`: those of the fitted text, if they are there.
  FittedSites FitTogether(const std::vector<Site>& sites, const std::vector<Site>& runs, CalibrationSums sums = {}) {
    const SiteInput input = InputOfSites();
    if (input == SiteInput::kMlpBefore) CheckBlockBefore(sites);
    {
      const Stopwatch watch(result_.seconds.calibrate);
      for (const std::vector<Site>* some : {&sites, &runs})
        for (const Site& site : *some)
          if (sums.fit_batches == 0) sums.sites.emplace_back(site, job_.hidden(), input, recipe_.weighting);
      Collect(job_, sums, nullptr, start_ ? &*start_ : nullptr);
    }
    std::vector<const SiteSums*> wanted;
    for (size_t i = 0; i < sites.size(); ++i) wanted.push_back(&sums.sites[i]);
    FittedSites fitted = Fit(sites, wanted, job_.progress);
    for (size_t i = sites.size(); i < sums.sites.size(); ++i) run_sums_.push_back(std::move(sums.sites[i]));
    return fitted;
  }

  // Plans may differ from the block before the first removed one on, or everywhere where blocks are rounded.
  HeldOutLoss LossOnHeldOut(int64_t tokens = kGateTokens) const {
    int64_t removed = result_.selection.removed.front().layer;
    if (result_.other) removed = std::min(removed, result_.other->removed.front().layer);
    return {job_.context, job_.model.weights, job_.calibration.heldout, tokens,
            RoundsFirst() ? 0 : std::max<int64_t>(0, removed - 1)};
  }

  void DropWhatHarms() {
    const Stopwatch watch(result_.seconds.calibrate);
    HeldOutLoss loss = LossOnHeldOut();
    GatedPlan gated = Gate(result_.corrected, loss, job_.progress);
    result_.corrected = std::move(gated.plan);
    result_.gate = std::move(gated.verdicts);
  }

  // Leaves the repair out as a whole if the loss is lower without it; the gate has tried the parts where it is asked
  // to.
  void WeighRepair() {
    const Stopwatch watch(result_.seconds.calibrate);
    HeldOutLoss loss = LossOnHeldOut(kGainTokens);
    const DepthPlan original = DepthPlan::Original(job_.layers());
    GainReport& gain = result_.gain.emplace(MeasureGain({original, result_.pruned, result_.corrected}, loss,
                                                        job_.progress, result_.other ? &*result_.other : nullptr));
    gain.kept = result_.corrected != result_.pruned && (recipe_.benefit != Benefit::kRequired || gain.gain >= 0);
    if (!gain.kept) result_.corrected = result_.pruned;
  }

  void MergeNeighbours() {
    result_.merged = MergeAdapters(result_.corrected, recipe_.merge, job_.context);
    std::vector<const AdapterStage*> adapters;
    std::vector<const SiteSums*> runs;
    std::vector<const RidgeMatrices*> sums;
    for (const SiteSums& run : run_sums_)
      for (const AdapterStage* adapter : result_.merged->Adapters())
        if (adapter->parts == run.site.Parts()) {
          adapters.push_back(adapter);
          runs.push_back(&run);
          sums.push_back(&run.fit.matrices());
        }
    std::vector<SiteReport> reports(runs.size());
    const SharedItems items = WhereSumsAre(job_.context, sums);
    items.ForEach([&](int64_t i) { reports[i] = MeasureSite(job_.context, *runs[i], *adapters[i]->lra); });
    items.Share(reports);
    result_.merged_runs = FitsOf(reports);
  }

  const ShiftJob& job_;
  const Recipe& recipe_;
  const Correction& correction_;
  const FitOptions options_;
  SavedSums loaded_;
  SharedCalibration shared_;
  std::optional<StartStreams> start_;  // the next pass or sequential fit begins there, if the selection kept it
  std::vector<SiteSums> run_sums_;     // sums of the runs that will be merged
  ShiftResult result_;
};

}  // namespace

ShiftResult Shift(const ShiftJob& job, const Recipe& recipe, Spectra spectra) {
  const bool split = !job.model.weights->shares.empty();
  CheckOptions(recipe, job.model.weights->config, split);
  if (recipe.quantise.any()) CheckRounds(job.context, *job.model.weights);
  Recipe resolved = recipe;
  resolved.mode = ModeOf(recipe, split);
  const auto repair = [&](const ShiftJob& on, const Recipe& by) { return Pipeline(on, by, spectra).Run(); };
  return recipe.prune.max_divergence > 0 ? RepairLargestCut(job, resolved, repair) : repair(job, resolved);
}

}  // namespace shiftrt
