#include "shift/pipeline.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/corrections/fold.h"
#include "shift/corrections/replaceme.h"
#include "shift/sums/collect.h"
#include "shift/sums/gram_file.h"

namespace shiftrt {

namespace {

// Held-out tokens that recipes are compared on, and that gating looks at.
constexpr int64_t kTrialTokens = 8192, kGateTokens = 16384;

// What sums of two runs must agree on before they add.
std::string Settings(const TokenWeighting& weighting) {
  return weighting.uniform() ? "independent" : fmt::format("independent, token weights {}", Format(weighting));
}

// Layer scores worth keeping beside the sums: those that took a pass over the same text.
std::map<std::string, std::vector<double>> ScoresOf(const Selection& selection) {
  if (selection.scores.empty() || !ScoresStandAlone(selection.criterion)) return {};
  return {{selection.criterion, selection.scores}};
}

class Job {
 public:
  Job(const Context& context, const Model& model, const CalibrationSet& calibration, const ShiftOptions& options,
      Progress& progress)
      : context_(context), model_(model), calibration_(calibration), options_(options), progress_(progress) {}

  ShiftResult Run() {
    if (!options_.gram.load.empty()) Load();
    result_.calibration = options_.gram.load.empty() ? calibration_.source : loaded_.origin.source;
    Select();
    result_.pruned = DepthPlan::Pruned(Layers(), result_.selection.removed);
    switch (options_.correction) {
      case Correction::kNone: result_.corrected = result_.pruned; break;
      case Correction::kLaco: result_.corrected = FoldLaco(*model_.weights, Runs()); break;
      case Correction::kReplaceMe: ReplaceMe(); break;
      case Correction::kLra:
      case Correction::kGenericAffine:
      case Correction::kBias:
      case Correction::kAuto: Adapt(); break;
    }
    if (options_.gate) DropWhatHarms();
    if (options_.merge != Merge::kOff) MergeNeighbours();
    return std::move(result_);
  }

 private:
  int64_t Layers() const { return model_.weights->config.layers; }
  int64_t Hidden() const { return model_.weights->config.hidden; }
  std::vector<Site> Runs() const { return RunsOf(result_.selection.removed); }

  void Load() {
    loaded_ = LoadGrams(options_.gram.load);
    CheckModel(loaded_, model_);
    if (loaded_.origin.settings != Settings(options_.weighting))
      FailUsage("{}: sums of \"{}\", but \"{}\" is asked for", options_.gram.load[0].string(), loaded_.origin.settings,
                Settings(options_.weighting));
  }

  void Select() {
    const Stopwatch watch(result_.seconds.select);
    const auto known = loaded_.scores.find(options_.prune.criterion);
    result_.selection =
        known != loaded_.scores.end()
            ? Reselect(options_.prune, known->second, *model_.weights)
            : SelectLayers(options_.prune, {context_, model_.weights, &calibration_.fit, options_.seed}, progress_);
  }

  CollectedSums CollectIntoFile() {
    std::vector<int64_t> layers = result_.selection.removed;
    if (options_.gram.all_layers) {
      layers.resize(Layers());
      std::iota(layers.begin(), layers.end(), 0);
    }
    // Half as much again: the file takes both triangles of every Gram.
    CheckMemory(context_, (3 * std::ssize(layers) + 1) / 2, Hidden(),
                "--memory allows more, and several files (--prune layers=..., --save-gram) take less each");
    GramSet wanted = NewGram(model_, calibration_, layers, Settings(options_.weighting), ScoresOf(result_.selection));
    for (SiteSums& site : wanted.sums.sites) site.weighting = options_.weighting;
    return shiftrt::CollectIntoFile(context_, model_, calibration_, std::move(wanted), options_.gram.save, progress_)
        .sums;
  }

  CollectedSums CollectSites(const std::vector<Site>& sites, SiteInput input = SiteInput::kStream) {
    CollectedSums sums;
    for (const Site& site : sites) {
      sums.sites.emplace_back(site, Hidden(), input);
      sums.sites.back().weighting = options_.weighting;
    }
    Collect(context_, model_, calibration_, sums, progress_);
    return sums;
  }

  void ReplaceMe() {
    CheckBlockBefore(Runs());
    CollectedSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      CheckMemory(context_, std::ssize(Runs()), Hidden(), "--memory allows more");
      sums = CollectSites(Runs(), SiteInput::kMlpBefore);
    }
    ReplaceMeResult fitted = FitReplaceMe(context_, *model_.weights, sums.sites, options_.ridge, progress_);
    static_cast<FitSeconds&>(result_.seconds) = fitted.seconds;
    result_.sites = std::move(fitted.reports);
    result_.corrected = std::move(fitted.plan);
  }

  void Adapt() {
    const std::vector<Site> sites = options_.span ? Runs() : SitesOf(result_.selection.removed);
    FittedSites fitted = options_.correction == Correction::kAuto     ? FitAutomatically(sites)
                         : options_.mode != Calibration::kIndependent ? FitInSequence(sites)
                         : options_.gram.used()                       ? FitFromFiles()
                                                                      : FitIndependently(sites);
    static_cast<FitSeconds&>(result_.seconds) = fitted.seconds;
    result_.sites = std::move(fitted.reports);
    result_.corrected = CorrectedPlan(Layers(), sites, fitted.adapters);
  }

  // What plans are compared by; they may differ from the block before the first removed one on.
  HeldOutLoss HeldOut(int64_t tokens) const {
    const int64_t first = result_.selection.removed.front();
    return {context_, model_.weights, calibration_.heldout, tokens, std::max<int64_t>(0, first - 1)};
  }

  void DropWhatHarms() {
    const Stopwatch watch(result_.seconds.calibrate);
    HeldOutLoss loss = HeldOut(kGateTokens);
    GatedPlan gated = Gate(result_.corrected, loss, progress_);
    result_.corrected = std::move(gated.plan);
    result_.gate = std::move(gated.verdicts);
  }

  void MergeNeighbours() {
    result_.merged = MergeAdapters(result_.corrected, options_.merge, context_);
    for (const SiteSums& run : run_sums_)
      for (const AdapterStage* adapter : result_.merged->Adapters())
        if (adapter->layers == run.Layers()) result_.merged_runs.push_back(MeasureSite(context_, run, *adapter->lra));
  }

  FittedSites FitAutomatically(const std::vector<Site>& sites) {
    HeldOutLoss loss = HeldOut(kTrialTokens);
    AutomaticFit chosen = shiftrt::FitAutomatically(context_, model_, calibration_, sites, options_, loss, progress_);
    result_.seconds.calibrate = chosen.calibrate_seconds;
    result_.trials = std::move(chosen.trials);
    result_.chosen_trial = chosen.chosen;
    return std::move(chosen.fitted);
  }

  FittedSites FitFromFiles() {
    CollectedSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      sums = options_.gram.load.empty() ? CollectIntoFile() : std::move(loaded_.sums);
    }
    return FitSites(context_, sums.Sites(result_.selection.removed), options_, progress_);
  }

  // As many sites at once as memory has room for the sums of, a pass over the text each.
  FittedSites FitIndependently(const std::vector<Site>& sites) {
    CheckMemory(context_, 1, Hidden(), "--memory allows more");
    if (options_.rank.kind == RankSpec::Kind::kBudget)
      CheckMemory(context_, std::ssize(sites), Hidden(),
                  "--memory allows more, and a rank by number or energy does with one site at a time");
    const std::vector<Site> runs = RunsToMeasure();
    const auto room = static_cast<size_t>(std::max<int64_t>(1, SitesInMemory(context_, Hidden())));
    if (sites.size() + runs.size() <= room) return FitTogether(sites, runs);
    FittedSites fitted;
    for (size_t first = 0; first < sites.size(); first += room) {
      const auto group = std::span(sites).subspan(first, std::min(room, sites.size() - first));
      fitted += FitTogether({group.begin(), group.end()}, {});
    }
    return fitted;
  }

  // Of the runs that will be merged.
  std::vector<Site> RunsToMeasure() const {
    std::vector<Site> runs = options_.merge == Merge::kOff ? std::vector<Site>() : Runs();
    std::erase_if(runs, [](const Site& run) { return run.blocks == 1; });
    return runs;
  }

  // Keeps the sums of `runs`, which the same pass gives.
  FittedSites FitTogether(const std::vector<Site>& sites, const std::vector<Site>& runs) {
    CollectedSums sums;
    {
      const Stopwatch watch(result_.seconds.calibrate);
      std::vector<Site> all = sites;
      all.insert(all.end(), runs.begin(), runs.end());
      sums = CollectSites(all);
    }
    std::vector<const SiteSums*> wanted;
    for (size_t i = 0; i < sites.size(); ++i) wanted.push_back(&sums.sites[i]);
    FittedSites fitted = FitSites(context_, wanted, options_, progress_);
    for (size_t i = sites.size(); i < sums.sites.size(); ++i) run_sums_.push_back(std::move(sums.sites[i]));
    return fitted;
  }

  FittedSites FitInSequence(const std::vector<Site>& sites) {
    FittedSites fitted;
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      fitted = shiftrt::FitInSequence(context_, model_, calibration_, sites, options_.mode, options_.weighting,
                                      options_, progress_);
    }
    result_.seconds.calibrate = seconds - fitted.seconds.solve - fitted.seconds.factorize;
    return fitted;
  }

  const Context& context_;
  const Model& model_;
  const CalibrationSet& calibration_;
  const ShiftOptions& options_;
  Progress& progress_;
  GramSet loaded_;
  std::vector<SiteSums> run_sums_;  // of runs that will be merged
  ShiftResult result_;
};

}  // namespace

void CheckOptions(const ShiftOptions& options, int64_t hidden) {
  const auto refuse = [](bool both, const char* why) {
    if (both) FailUsage("{}", why);
  };
  const Correction correction = options.correction;
  const bool adapters = FitsAdapters(correction);
  const bool in_sequence = options.mode != Calibration::kIndependent;
  CheckRank(options.rank, hidden);
  refuse(!options.gram.load.empty() && !options.gram.save.empty(),
         "sums are either loaded (--load-gram) or collected and saved (--save-gram)");
  refuse(options.gram.used() && (in_sequence || options.span || !adapters),
         "--save-gram and --load-gram go with adapters that are fitted independently, one a layer");
  refuse(options.span && options.merge != Merge::kOff, "--span leaves nothing to merge");
  refuse(options.span && !adapters, "--span goes with adapters");
  refuse(options.merge != Merge::kOff && !adapters, "--merge goes with adapters");
  refuse(in_sequence && !adapters, "--calibration goes with adapters");
  refuse(in_sequence && options.rank.kind == RankSpec::Kind::kBudget,
         "--lra budget: is spread over sites that are fitted together: --calibration independent");
  refuse(!options.weighting.uniform() && !adapters, "--token-weight goes with adapters");
  refuse(correction == Correction::kAuto && (in_sequence || !options.weighting.uniform() || options.gram.used()),
         "--correction auto chooses calibration and token weights itself, from a pass of its own");
  refuse(options.gate && correction == Correction::kNone, "--gate without a correction");
}

ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress) {
  CheckOptions(options, model.weights->config.hidden);
  return Job(context, model, calibration, options, progress).Run();
}

}  // namespace shiftrt
