// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/repair.h"

#include <algorithm>

#include "api/impl.h"
#include "models/part_json.h"
#include "runtime/check.h"
#include "shift/pipeline.h"

namespace shiftrt {

namespace {

ShiftOptions ToShiftOptions(const RepairSettings& settings) {
  ShiftOptions options;
  options.prune = ParsePrune(settings.prune);
  options.correction = &FindCorrection(settings.correction);
  options.fit.rank = ParseRank(settings.rank);
  options.fit.ridge = {ParseLambda(settings.lambda), settings.penalize_bias};
  options.fit.factorization = ParseFactorization(settings.factorization);
  options.mode = ParseCalibrationMode(settings.calibration_mode);
  options.weighting = ParseTokenWeighting(settings.token_weight);
  options.span = settings.span;
  options.gate = settings.gate;
  options.heal = ParseHeal(settings.heal);
  options.merge = ParseMerge(settings.merge);
  options.seed = settings.seed;
  return options;
}

CalibrationSet LoadText(const RepairSettings& settings, const Model& model) {
  const std::filesystem::path beside = model.directory / "calibration.txt";
  if (settings.text.empty() && !std::filesystem::exists(beside))
    FailUsage(Field("text"), "there is no {}; give a file with calibration text", beside.string());
  CalibrationSpec spec = ParseCalibration(settings.text.empty() ? beside.string() : settings.text);
  spec.tokens = std::min(spec.tokens, model.weights->config.max_positions);
  return LoadCalibration(spec, model.RequireTokenizer(), settings.seed);
}

nlohmann::json MadeBy(const RepairSettings& settings, Calibration mode, const ShiftResult& result) {
  return {{"selection",
           {{"criterion", result.selection.criterion},
            {"scores", result.selection.scores},
            {"removed", result.selection.removed},
            {"unit", Name(result.selection.unit)}}},
          {"calibration", {{"source", result.calibration}}},
          {"prune", settings.prune},
          {"correction", settings.correction},
          {"lra", settings.rank},
          {"lambda", settings.lambda},
          {"factorization", settings.factorization},
          {"calibration_mode", Name(mode)},
          {"token_weight", settings.token_weight},
          {"span", settings.span},
          {"heal", settings.heal},
          {"merge", settings.merge}};
}

}  // namespace

RepairResult PruneAndRepair(const LanguageModel& model, const RepairSettings& settings, const Resources& resources,
                            Progress* progress) {
  const Model& original = model.impl().model;
  if (original.plan != DepthPlan::Original(model.Shape().layers))
    FailUsage(Field("model"), "{} is already pruned; give the model that it was made from", original.name);
  const ShiftOptions options = ToShiftOptions(settings);
  CheckOptions(options, original.weights->config);
  const Context context = MakeContext(resources);
  const CalibrationSet text = LoadText(settings, original);
  ProgressOf reports(progress);
  const ShiftResult result = Shift({context, original, text, reports}, options);

  const nlohmann::json made_by = MadeBy(settings, ModeOf(options, false), result);
  const auto with_plan = [&](const DepthPlan& plan) {
    LanguageModel::Impl impl{original, made_by};
    impl.model.plan = plan;
    impl.model.removed = plan.RemovedLayers(model.Shape().layers);
    return LanguageModel(std::make_shared<const LanguageModel::Impl>(std::move(impl)));
  };
  RepairResult repair{.criterion = result.selection.criterion,
                      .scores = result.selection.scores,
                      .removed = {},
                      .removed_halves = {},
                      .sites = {},
                      .pruned = with_plan(result.pruned),
                      .corrected = with_plan(result.corrected),
                      .merged = std::nullopt};
  for (const BlockPart& part : result.selection.removed) {
    if (part.halves == Halves::kBoth) {
      repair.removed.push_back(part.layer);
    } else {
      repair.removed_halves.push_back(Name(part));
    }
  }
  if (result.merged) repair.merged = with_plan(*result.merged);
  for (const SiteReport& site : result.sites)
    repair.sites.push_back(
        {site.site.Name(), site.site.Layers(), site.rank, site.lambda, site.r2_fit, site.r2_heldout, site.warning});
  return repair;
}

}  // namespace shiftrt
