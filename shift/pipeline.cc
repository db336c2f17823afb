// SPDX-License-Identifier: Apache-2.0
#include "shift/pipeline.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/fit/loss_gradients.h"
#include "shift/fit/messages.h"
#include "shift/fit/sequential.h"
#include "shift/refit/fold.h"
#include "shift/sums/collect.h"
#include "shift/sums/gram_file.h"

namespace shiftrt {

namespace {

// Held-out tokens that gating looks at.
constexpr int64_t kGateTokens = 16384;

// The settings that the sums of two runs must have in common if they are to be added.
std::string Settings(const TokenWeighting& weighting) {
  return weighting.uniform() ? "independent" : fmt::format("independent, token weights {}", Format(weighting));
}

// Layer scores worth keeping beside the sums: those that took a pass over the same text.
std::map<std::string, std::vector<double>> ScoresOf(const Selection& selection) {
  if (selection.scores.empty() || selection.unit == Unit::kHalf ||
      !FindCriterion(selection.criterion).scores_stand_alone)
    return {};
  return {{selection.criterion, selection.scores}};
}

class Pipeline {
 public:
  Pipeline(const ShiftJob& job, const ShiftOptions& options)
      : job_(job),
        options_(options),
        fit_(options.fit),
        weighting_(options.weighting),
        correction_(*options.correction) {}

  ShiftResult Run() {
    if (!options_.gram.load.empty()) Load();
    CheckText();
    result_.calibration = options_.gram.load.empty() ? job_.calibration.source : loaded_.origin.source;
    Select();
    result_.pruned = DepthPlan::Pruned(job_.layers(), result_.selection.removed);
    Correct();
    if (options_.gate) DropWhatHarms();
    if (options_.merge != Merge::kOff) MergeNeighbours();
    // Every process computes the parts that are not dealt out, and CPUs of different kinds may round them differently.
    Processes& processes = *job_.context.processes;
    if (!processes.alone()) processes.CheckSame("fit", result_.corrected.Fingerprint());
    return std::move(result_);
  }

 private:
  std::vector<Site> Runs() const { return RunsOf(result_.selection.removed); }

  void Load() {
    loaded_ = LoadSums(options_.gram.load);
    CheckModel(loaded_, job_.model);
    if (loaded_.origin.settings != Settings(options_.weighting))
      FailUsage(Field("gram.load"), "{} has sums of \"{}\", but \"{}\" is asked for", options_.gram.load[0].string(),
                loaded_.origin.settings, Settings(options_.weighting));
  }

  // True if the files of sums have the scores by which layers are selected.
  bool Scored() const {
    return options_.prune.unit == Unit::kBlock && loaded_.scores.contains(options_.prune.criterion);
  }

  void CheckText() const {
    if (job_.calibration.fit.empty() && ReadsText(options_, Scored()))
      FailUsage(Field("calibration"), "there is no calibration text, which these options need");
  }

  void Select() {
    const Stopwatch watch(result_.seconds.select);
    result_.selection =
        Scored()
            ? Reselect(options_.prune, loaded_.scores.at(options_.prune.criterion), *job_.model.weights)
            : SelectLayers(options_.prune, {job_.context, job_.model.weights, &job_.calibration.fit, options_.seed},
                           job_.progress);
  }

  void Correct() {
    const bool each_block = correction_.per_block() && !options_.span;
    const std::vector<Site> sites = each_block ? SitesOf(result_.selection.removed) : Runs();
    CollectGradients(sites);
    if (correction_.walks()) return Walk(result_.pruned);
    FittedSites fitted = !correction_.needs_sums()                    ? Fit(sites, {}, job_.progress)
                         : options_.mode != Calibration::kIndependent ? FitInSequence(sites)
                         : options_.gram.used()                       ? FitFromFiles(sites)
                                                                      : FitIndependently(sites);
    result_.corrected = CorrectedPlan(job_.layers(), sites, fitted);
    result_.sites = std::move(fitted.reports);
    result_.trials = std::move(fitted.trials);
    result_.chosen_trial = fitted.chosen_trial;
    result_.untried = std::move(fitted.untried);
    result_.seconds += fitted.seconds;
    if (options_.heal != Heal::kOff) Walk(result_.corrected);
  }

  // Collects the gradients of the loss behind every site, for a metric and for token weights.
  void CollectGradients(const std::vector<Site>& sites) {
    const bool metric = fit_.metric != MetricKind::kIdentity, sizes = weighting_.gradient && options_.gram.load.empty();
    if (!metric && !sizes) return;
    const Stopwatch watch(result_.seconds.calibrate);
    std::vector<int64_t> last;
    last.reserve(sites.size());
    for (const Site& site : sites) last.push_back(site.last());
    if (metric) fit_.metrics = CollectMetrics(job_, fit_.metric, last);
    if (!sizes) return;
    if (options_.gram.all_layers) {  // all of them have sums, and only the sites are fitted
      last.resize(job_.layers());
      std::iota(last.begin(), last.end(), 0);
    }
    weighting_.sizes = CollectGradientSizes(job_, last);
  }

  // Fits what is fitted from activations: the correction of the runs that `plan` leaves bare, and what is healed.
  void Walk(const DepthPlan& plan) {
    std::optional<BlockCorrection> correction;
    if (correction_.walks()) correction = InWalk(correction_, job_, fit_);
    WalkResult walked =
        RefitInSequence(job_, plan, result_.selection.removed,
                        {correction ? &*correction : nullptr, options_.heal, options_.fit.ridge, options_.weighting});
    result_.corrected = std::move(walked.plan);
    if (correction_.walks()) result_.sites = std::move(walked.sites);
    result_.healed = std::move(walked.healed);
    result_.seconds += walked.seconds;
  }

  FittedSites Fit(const std::vector<Site>& sites, const std::vector<const SiteSums*>& sums, Progress& progress) const {
    const ShiftJob job = {job_.context, job_.model, job_.calibration, progress};
    return correction_.fit({job, sites, sums, fit_});
  }

  FittedSites FitInSequence(const std::vector<Site>& sites) const {
    return shiftrt::FitInSequence(
        job_, sites, options_.mode, weighting_,
        [&](const SiteSums& site, Progress& progress) { return Fit({site.site}, {&site}, progress); });
  }

  FittedSites FitFromFiles(const std::vector<Site>& sites) {
    CalibrationSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      sums = options_.gram.load.empty() ? CollectIntoFile() : std::move(loaded_.sums);
    }
    return Fit(sites, sums.Sites(result_.selection.removed), job_.progress);
  }

  CalibrationSums CollectIntoFile() {
    const std::vector<BlockPart> layers =
        options_.gram.all_layers ? PartsBetween(0, 2 * job_.layers()) : result_.selection.removed;
    // Half as much again: the file takes both triangles of every Gram.
    CheckMemory(job_.context, (3 * std::ssize(layers) + 1) / 2, job_.hidden(),
                "a higher limit allows more, and several files, of some layers each, take less");
    SavedSums wanted = NewSavedSums(job_, layers, Settings(options_.weighting), ScoresOf(result_.selection));
    for (SiteSums& site : wanted.sums.sites) site.weighting = weighting_;
    return shiftrt::CollectIntoFile(job_, std::move(wanted), options_.gram.save).sums;
  }

  // Fits as many sites at once as memory has room for their sums. Each group of sites takes a pass over the text.
  FittedSites FitIndependently(const std::vector<Site>& sites) {
    CheckMemory(job_.context, 1, job_.hidden(), "a higher limit allows more");
    if (options_.fit.rank.kind == RankSpec::Kind::kBudget && correction_.has_rank())
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
    std::vector<Site> runs = options_.merge == Merge::kOff ? std::vector<Site>() : Runs();
    std::erase_if(runs, [](const Site& run) { return run.blocks == 1; });
    return runs;
  }

  // Sums of no tokens yet. If the model is split, the process that holds the site's last block keeps them.
  SiteSums NoSums(const Site& site, SiteInput input) const {
    const Weights& weights = *job_.model.weights;
    const Processes& processes = *job_.context.processes;
    if (!weights.split()) return {site, job_.hidden(), input, weighting_};
    const auto share = std::find_if(weights.shares.begin(), weights.shares.end(),
                                    [&](const ModelShare& one) { return one.Has(site.last()); });
    const int holder = processes.RankOf(static_cast<int>(site.layer % processes.groups()),
                                        static_cast<int>(share - weights.shares.begin()));
    return {site, input, {job_.hidden(), job_.hidden()}, weighting_, holder};
  }

  // Keeps the sums of `runs`, which the same pass gives.
  FittedSites FitTogether(const std::vector<Site>& sites, const std::vector<Site>& runs) {
    const SiteInput input = correction_.needs == Needs::kMlpSums ? SiteInput::kMlpBefore : SiteInput::kStream;
    if (input == SiteInput::kMlpBefore) CheckBlockBefore(sites);
    CalibrationSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      for (const std::vector<Site>* some : {&sites, &runs})
        for (const Site& site : *some) sums.sites.push_back(NoSums(site, input));
      Collect(job_, sums);
    }
    std::vector<const SiteSums*> wanted;
    for (size_t i = 0; i < sites.size(); ++i) wanted.push_back(&sums.sites[i]);
    FittedSites fitted = Fit(sites, wanted, job_.progress);
    for (size_t i = sites.size(); i < sums.sites.size(); ++i) run_sums_.push_back(std::move(sums.sites[i]));
    return fitted;
  }

  void DropWhatHarms() {
    const Stopwatch watch(result_.seconds.calibrate);
    // Plans may differ from the block before the first removed one on.
    HeldOutLoss loss(job_.context, job_.model.weights, job_.calibration.heldout, kGateTokens,
                     std::max<int64_t>(0, result_.selection.removed.front().layer - 1));
    GatedPlan gated = Gate(result_.corrected, loss, job_.progress);
    result_.corrected = std::move(gated.plan);
    result_.gate = std::move(gated.verdicts);
  }

  void MergeNeighbours() {
    result_.merged = MergeAdapters(result_.corrected, options_.merge, job_.context);
    Processes& processes = *job_.context.processes;
    std::vector<int> owners;
    for (const SiteSums& run : run_sums_)
      for (const AdapterStage* adapter : result_.merged->Adapters())
        if (adapter->parts == run.site.Parts()) {
          owners.push_back(run.holder >= 0 ? run.holder : processes.rank());
          const bool here = owners.back() == processes.rank();
          result_.merged_runs.push_back(here ? MeasureSite(job_.context, run, *adapter->lra) : SiteReport());
          result_.merged_runs.back().site = run.site;
        }
    processes.ShareOf(
        std::ssize(owners), [&](int64_t i) { return owners[i]; },
        [&](Packer& out, int64_t i) { Put(out, result_.merged_runs[i]); },
        [&](Unpacker& in, int64_t i) { Get(in, result_.merged_runs[i]); });
  }

  const ShiftJob& job_;
  const ShiftOptions& options_;
  FitOptions fit_;            // the options, with the metrics that a pass has collected
  TokenWeighting weighting_;  // the options, with the gradient sizes that a pass has collected
  const Correction& correction_;
  SavedSums loaded_;
  std::vector<SiteSums> run_sums_;  // sums of the runs that will be merged
  ShiftResult result_;
};

}  // namespace

ShiftResult Shift(const ShiftJob& job, const ShiftOptions& options) {
  const bool split = job.model.weights->split();
  CheckOptions(options, job.model.weights->config, split);
  ShiftOptions settled = options;
  settled.mode = ModeOf(options, split);
  return Pipeline(job, settled).Run();
}

}  // namespace shiftrt
