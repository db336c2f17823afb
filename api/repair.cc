// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/repair.h"

#include <algorithm>
#include <utility>

#include "api/impl.h"
#include "api/kept_fit.h"
#include "api/repair.h"
#include "runtime/check.h"
#include "runtime/processes.h"

namespace shiftrt {

namespace {

CalibrationSet LoadText(const Recipe& recipe, const ShiftOptions& options, const Model& model, Device device) {
  if (recipe.text.source.empty() && !ReadsText(options, /*scored=*/!recipe.gram.load.empty())) return {};
  CalibrationSpec spec = recipe.text;
  if (spec.source.empty()) {
    const std::filesystem::path beside = model.directory / "calibration.txt";
    if (!std::filesystem::exists(beside))
      FailUsage(Field("text"), "there is no {}; give a file with calibration text", beside.string());
    spec.source = beside.string();
  }
  spec.tokens = std::min(spec.tokens, model.weights->config.max_positions);
  return LoadCalibration(spec, model.RequireTokenizer(), recipe.seed, CalibrationBatchTokens(device));
}

std::vector<FitReport> FitsOf(const std::vector<SiteReport>& sites) {
  std::vector<FitReport> fits;
  for (const SiteReport& site : sites) {
    FitReport& fit = fits.emplace_back();
    fit.layers = site.site.Parts();
    fit.name = site.site.Name();
    fit.part = site.part;
    fit.lambda = site.lambda;
    fit.tokens = site.tokens;
    fit.rank = site.rank;
    fit.effective_rank = site.effective_rank;
    fit.scale = site.scale;
    fit.r2_fit = site.r2_fit;
    fit.r2_heldout = site.r2_heldout;
    fit.condition = site.condition;
    fit.singular_values = site.singular_values;
    fit.warning = site.warning;
  }
  return fits;
}

std::vector<SiteReport> SitesOf(const std::vector<FitReport>& fits) {
  std::vector<SiteReport> sites;
  for (const FitReport& fit : fits) {
    Check(!fit.layers.empty(), "a fit stands for no layer");
    SiteReport& site = sites.emplace_back();
    site.site = Site::Between(fit.layers.front().begin(), fit.layers.back().end());
    site.part = fit.part;
    site.lambda = fit.lambda;
    site.tokens = fit.tokens;
    site.rank = fit.rank;
    site.effective_rank = fit.effective_rank;
    site.scale = fit.scale;
    site.r2_fit = fit.r2_fit;
    site.r2_heldout = fit.r2_heldout;
    site.condition = fit.condition;
    site.singular_values = fit.singular_values;
    site.warning = fit.warning;
  }
  return sites;
}

std::vector<TrialReport> TrialsOf(const ShiftResult& result) {
  std::vector<TrialReport> trials;
  for (const Trial& trial : result.trials)
    trials.push_back({.correction = trial.recipe.correction,
                      .calibration = Name(trial.recipe.mode),
                      .token_weight = Format(trial.recipe.weighting),
                      .factorization = Name(trial.recipe.factorization),
                      .lambda = Format(trial.recipe.lambda),
                      .recipe = Format(trial.recipe),
                      .adapter_parameters = trial.parameters,
                      .tokens = trial.tokens,
                      .loss = trial.loss,
                      .gain = trial.gain,
                      .gain_error = trial.error,
                      .chosen = &trial == &result.trials[result.chosen_trial]});
  return trials;
}

}  // namespace

ShiftOptions OptionsOf(const Recipe& recipe) {
  ShiftOptions options;
  options.prune = recipe.prune;
  options.prune.text = Format(recipe.prune);
  options.correction = &FindCorrection(recipe.correction);
  options.fit.rank = recipe.rank;
  options.fit.ridge = {recipe.lambda, recipe.penalize_bias};
  options.fit.factorization = recipe.factorization;
  options.mode = recipe.mode;
  options.weighting = WeightingOf(recipe.weighting);
  options.span = recipe.span;
  options.gate = recipe.gate;
  options.merge = recipe.merge;
  options.heal = recipe.heal;
  options.gram = recipe.gram;
  options.seed = recipe.seed;
  return options;
}

std::string Text(const ShiftOptions& options) {
  const FitOptions& fit = options.fit;
  std::string text = fmt::format(
      "{} {} rank {} lambda {} penalize bias {} {} {} weights {} span {} gate {} heal {} merge {} seed {} save "
      "\"{}\" {}",
      Format(options.prune), options.correction->name, Format(fit.rank), Format(fit.ridge.lambda),
      fit.ridge.penalize_bias, Name(fit.factorization), Name(options.mode), Format(options.weighting), options.span,
      options.gate, Name(options.heal), Name(options.merge), options.seed, options.gram.save.string(),
      options.gram.all_layers ? "all" : "removed");
  for (const std::filesystem::path& file : options.gram.load) text += fmt::format(" load \"{}\"", file.string());
  return text;
}

RepairReport ReportOf(const ShiftResult& result) {
  const StepSeconds& seconds = result.seconds;
  return {.selection = result.selection,
          .sites = FitsOf(result.sites),
          .healed = FitsOf(result.healed),
          .healing = result.healing,
          .merged_runs = FitsOf(result.merged_runs),
          .trials = TrialsOf(result),
          .untried = result.untried,
          .gate = result.gate,
          .seconds = {seconds.select, seconds.calibrate, seconds.solve, seconds.factorize, std::nullopt}};
}

ShiftResult ResultOf(const RepairReport& report, const CalibrationReport& text) {
  Check(!report.selection.removed.empty(), "the report names no layer that was removed");
  ShiftResult result;
  result.selection = report.selection;
  result.calibration = text.source;
  result.sites = SitesOf(report.sites);
  result.healed = SitesOf(report.healed);
  result.merged_runs = SitesOf(report.merged_runs);
  for (const TrialReport& from : report.trials) {
    if (from.chosen) result.chosen_trial = result.trials.size();
    Trial& trial = result.trials.emplace_back();
    trial.recipe = {ParseCalibrationMode(from.calibration), ParseTokenWeighting(from.token_weight),
                    ParseFactorization(from.factorization), ParseLambda(from.lambda), from.correction};
    trial.parameters = from.adapter_parameters;
    trial.tokens = from.tokens;
    trial.loss = from.loss;
    trial.gain = from.gain;
    trial.error = from.gain_error;
  }
  result.untried = report.untried;
  result.gate = report.gate;
  result.healing = report.healing;
  result.seconds = {report.seconds.select, report.seconds.calibrate, report.seconds.solve, report.seconds.factorize};
  return result;
}

Provenance ProvenanceOf(const std::string& model, const ShiftOptions& options, const CalibrationSet& text,
                        const ShiftResult& result) {
  Provenance made;
  made.model = model;
  made.criterion = result.selection.criterion;
  // A setting that nothing reads has no value.
  const auto read = [accepted = Accepted(options)](Setting setting, const std::string& value) {
    return accepted.has(setting) ? value : "";
  };
  made.recipe = {.prune = options.prune.text,
                 .correction = std::string(options.correction->name),
                 .rank = read(Setting::kRank, Format(options.fit.rank)),
                 .lambda = read(Setting::kLambda, Format(options.fit.ridge.lambda)),
                 .factorization = read(Setting::kFactorization, Name(options.fit.factorization)),
                 .calibration_mode = read(Setting::kMode, Name(options.mode)),
                 .token_weight = read(Setting::kWeights, Format(options.weighting)),
                 .heal = Name(options.heal),
                 .merge = Name(options.merge),
                 .span = options.span};
  made.calibration.emplace();
  if (!options.gram.load.empty() || ReadsText(options))
    made.calibration = {.source = result.calibration,
                        .hash = text.hash,
                        .tokens = result.sites.empty() ? text.fit_tokens : result.sites.front().tokens,
                        .heldout_tokens = text.heldout_tokens};
  made.repair = ReportOf(result);
  return made;
}

RepairResult Repair(const LanguageModel& model, const Recipe& recipe, const Resources& resources, Progress* progress,
                    const std::filesystem::path& keep) {
  const Model& original = model.impl().model;
  if (original.plan != DepthPlan::Original(model.Shape().layers))
    FailUsage(Field("model"), "{} is already pruned; give the model that it was made from", original.name);
  ShiftOptions options = OptionsOf(recipe);
  CheckOptions(options, original.weights->config);
  const Context context = MakeContext(resources);
  const CalibrationSet text = LoadText(recipe, options, original, context.device);
  context.processes->CheckSame("calibration text (hash)", text.hash);
  ProgressOf reports(progress);
  options.mode = ModeOf(options, original.weights->split());
  const ShiftResult result = KeptFit{keep}.Get({context, original, text, reports}, options);

  const Provenance made = ProvenanceOf(original.name, options, text, result);
  Provenance bare = made;  // of the model without its correction
  bare.recipe = {.prune = made.recipe.prune, .correction = "none", .merge = "off"};
  RepairResult repair{.report = *made.repair,
                      .pruned = WithPlan(original, result.pruned, std::move(bare)),
                      .corrected = WithPlan(original, result.corrected, made),
                      .merged = std::nullopt};
  if (result.merged) repair.merged = WithPlan(original, *result.merged, made);
  return repair;
}

}  // namespace shiftrt
