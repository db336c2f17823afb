#include "shift/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/collect.h"
#include "shift/gram_file.h"

namespace shiftrt {

namespace {

// What sums of two runs must agree on before they add.
constexpr const char* kSettings = "independent";

// Layer scores worth keeping beside the sums: those that took a pass over the same text.
std::map<std::string, std::vector<double>> ScoresOf(const Selection& selection) {
  if (selection.scores.empty() || !ScoresStandAlone(selection.criterion)) return {};
  return {{selection.criterion, selection.scores}};
}

CollectedSums CollectSums(const Context& context, const Model& model, const CalibrationSet& calibration,
                          const Selection& selection, const GramFiles& files, Progress& progress) {
  std::vector<int64_t> layers = selection.removed;
  if (files.save.empty()) {
    CollectedSums sums = CollectedSums::Empty(layers, model.weights->config.hidden);
    Collect(context, model, calibration, sums, progress);
    return sums;
  }
  if (files.all_layers) {
    layers.resize(model.weights->config.layers);
    std::iota(layers.begin(), layers.end(), 0);
  }
  GramSet wanted = NewGram(model, calibration, layers, kSettings, ScoresOf(selection));
  return CollectIntoFile(context, model, calibration, std::move(wanted), files.save, progress).sums;
}

}  // namespace

ShiftResult Shift(const Context& context, const Model& model, const CalibrationSet& calibration,
                  const ShiftOptions& options, Progress& progress) {
  const ModelConfig& config = model.weights->config;
  const GramFiles& files = options.gram;
  CheckRank(options.rank, config.hidden);
  if (!files.load.empty() && !files.save.empty())
    FailUsage("sums are either loaded (--load-gram) or collected and saved (--save-gram)");
  GramSet loaded;
  if (!files.load.empty()) {
    loaded = LoadGrams(files.load);
    CheckModel(loaded, model);
  }
  ShiftResult result;
  result.calibration = files.load.empty() ? calibration.source : loaded.origin.source;
  ShiftSeconds& seconds = result.seconds;
  {
    const Stopwatch watch(seconds.select);
    const auto known = loaded.scores.find(options.prune.criterion);
    result.selection =
        known != loaded.scores.end()
            ? Reselect(options.prune, known->second, *model.weights)
            : SelectLayers(options.prune, {context, model.weights, &calibration.fit, options.seed}, progress);
  }
  const std::vector<int64_t>& removed = result.selection.removed;

  CollectedSums sums;
  {
    const Stopwatch watch(seconds.calibrate);
    sums = files.load.empty() ? CollectSums(context, model, calibration, result.selection, files, progress)
                              : std::move(loaded.sums);
  }
  FittedSites fitted = FitSites(context, sums.Sites(removed), options, progress);
  static_cast<FitSeconds&>(seconds) = fitted.seconds;

  result.sites = std::move(fitted.reports);
  result.pruned = DepthPlan::Pruned(config.layers, removed);
  result.corrected = DepthPlan::Corrected(config.layers, removed, fitted.adapters);
  if (options.merge != Merge::kOff) result.merged = MergeAdapters(result.corrected, options.merge, context);
  return result;
}

}  // namespace shiftrt
