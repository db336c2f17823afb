// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/repair.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "api/impl.h"
#include "api/kept_fit.h"
#include "api/repair.h"
#include "runtime/check.h"
#include "runtime/processes.h"

namespace shiftrt {

namespace {

CalibrationSet LoadText(const Recipe& recipe, const Model& model, Device device) {
  if (recipe.text.source.empty() && !ReadsText(recipe)) return {};
  return LoadCalibration(TextOf(recipe.text, model, "text"), model.RequireTokenizer(), recipe.seed,
                         CalibrationBatchTokens(device));
}

// The fields that a report of the public face and one of the method have in common.
template <typename Report>
auto Shared(Report& report) {
  return std::tie(report.part, report.lambda, report.tokens, report.rank, report.effective_rank, report.scale,
                  report.r2_fit, report.r2_heldout, report.condition, report.singular_values, report.warning);
}

std::vector<FitReport> FitsOf(const std::vector<SiteReport>& sites) {
  std::vector<FitReport> fits;
  for (const SiteReport& site : sites) {
    FitReport& fit = fits.emplace_back();
    fit.layers = site.site.Parts();
    fit.name = site.site.Name();
    Shared(fit) = Shared(site);
  }
  return fits;
}

std::vector<SiteReport> SitesOf(const std::vector<FitReport>& fits) {
  std::vector<SiteReport> sites;
  for (const FitReport& fit : fits) {
    Check(!fit.layers.empty(), "a fit stands for no layer");
    SiteReport& site = sites.emplace_back();
    site.site = Site::Between(fit.layers.front().begin(), fit.layers.back().end());
    Shared(site) = Shared(fit);
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

// True if anything is put in the place of the removed blocks, or kept blocks are healed.
bool Corrects(const Recipe& recipe) {
  const RepairEffects effects = EffectsOf(recipe);
  return effects.adapters || effects.changes_blocks;
}

// "none" is not a name for a plan with something in it.
std::string VariantName(const Recipe& recipe) { return recipe.correction == "none" ? "healed" : recipe.correction; }

// Says for tables what stands in the place of the removed blocks, and what else was fitted again.
std::string VariantLabel(const Recipe& recipe, const ShiftResult& result) {
  const auto label = [&](std::string_view correction) {
    return Label(FindCorrection(correction), recipe.rank, recipe.span);
  };
  const std::string text = result.trials.empty()
                               ? label(recipe.correction)
                               : fmt::format("auto ({})", label(result.trials[result.chosen_trial].recipe.correction));
  const bool healed = recipe.heal != Heal::kOff && (!result.healing || result.healing->kept);
  return healed ? fmt::format("{}, healed ({})", text, Name(recipe.heal)) : text;
}

}  // namespace

CalibrationSpec TextOf(CalibrationSpec spec, const Model& model, const char* field) {
  if (spec.source.empty()) {
    const std::filesystem::path beside = model.directory / "calibration.txt";
    if (!std::filesystem::exists(beside))
      FailUsage(Field(field), "there is no {}; give a file with calibration text", beside.string());
    spec.source = beside.string();
  }
  spec.tokens = std::min(spec.tokens, model.weights->config.max_positions);
  return spec;
}

void CheckOriginal(const Model& model) {
  if (model.plan != DepthPlan::Original(model.weights->config.layers))
    FailUsage(Field("model"), "{} is already pruned; give the model it was made from", model.name);
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

RepairEffects EffectsOf(const Recipe& recipe) {
  const Correction& correction = FindCorrection(recipe.correction);
  return {correction.adapters(), correction.changes_blocks() || recipe.heal != Heal::kOff};
}

void CheckGiven(const Recipe& recipe, std::string_view field) { CheckGiven(OptionsOf(recipe), field); }

std::vector<std::string> VariantNames(const Recipe& recipe) {
  std::vector<std::string> names = {"original", "pruned"};
  if (Corrects(recipe)) names.push_back(VariantName(recipe));
  if (recipe.merge != Merge::kOff) names.emplace_back("merged");
  return names;
}

void CheckRecipe(const LanguageModel& model, const Recipe& recipe) {
  const Model& original = model.impl().model;
  CheckOriginal(original);
  CheckOptions(OptionsOf(recipe), original.weights->config, original.weights->split());
}

struct RepairJob::Impl {
  Impl(const LanguageModel& model, const Recipe& recipe, const Resources& resources)
      : model(model),
        recipe(recipe),
        options(OptionsOf(recipe)),
        context(MakeContext(resources)),
        text(LoadText(recipe, model.impl().model, context.device)),
        report{text.source, text.hash, text.fit_tokens, text.heldout_tokens} {
    options.mode = ModeOf(options, model.impl().model.weights->split(), &why);
  }
  ShiftJob Job(Progress& progress) const { return {context, model.impl().model, text, progress}; }
  RepairResult Result(const ShiftResult& result) const;

  LanguageModel model;
  Recipe recipe;
  ShiftOptions options;  // its mode is not kAuto
  const char* why = nullptr;
  Context context;
  CalibrationSet text;
  CalibrationReport report;
};

RepairJob::RepairJob(const LanguageModel& model, const Recipe& recipe, const Resources& resources) {
  CheckRecipe(model, recipe);
  impl_ = std::make_unique<Impl>(model, recipe, resources);
  impl_->context.processes->CheckSame("calibration text (hash)", impl_->text.hash);
}
RepairJob::~RepairJob() = default;

const CalibrationReport& RepairJob::Text() const { return impl_->report; }
std::string RepairJob::Accounting() const { return impl_->text.Accounting(); }
Calibration RepairJob::Mode() const { return impl_->options.mode; }
std::string RepairJob::WhyMode() const { return impl_->why != nullptr ? impl_->why : ""; }

HeldOutText RepairJob::HeldOut() const {
  HeldOutText heldout{.source = "held-out samples of the calibration text", .of_calibration = true};
  for (const Batch& batch : impl_->text.heldout)
    heldout.tokens.insert(heldout.tokens.end(), batch.tokens.begin(), batch.tokens.end());
  heldout.all = std::ssize(heldout.tokens);
  return heldout;
}

std::string RepairJob::Key() const {
  NoProgress quiet;
  return FitKey(impl_->Job(quiet), impl_->options);
}

RepairResult RepairJob::Impl::Result(const ShiftResult& result) const {
  const Model& original = model.impl().model;
  const Provenance made = ProvenanceOf(original.name, options, text, result);
  Provenance bare = made;  // the provenance of the model without its correction
  bare.recipe = {.prune = made.recipe.prune, .correction = "none", .merge = "off"};
  RepairResult repair{.report = *made.repair,
                      .pruned = WithPlan(original, result.pruned, std::move(bare)),
                      .corrected = WithPlan(original, result.corrected, made),
                      .merged = std::nullopt,
                      .variants = {{"original", "original", model}}};
  const bool corrects = Corrects(recipe);
  repair.variants.push_back({"pruned", "pruned", corrects ? repair.pruned : repair.corrected});
  if (corrects)
    repair.variants.push_back({VariantName(recipe), "pruned + " + VariantLabel(recipe, result), repair.corrected});
  if (result.merged) {
    repair.merged = WithPlan(original, *result.merged, made);
    repair.variants.push_back({"merged", fmt::format("merged ({})", Name(recipe.merge)), *repair.merged});
  }
  return repair;
}

RepairResult RepairJob::Run(Progress* progress, const KeepSettings& keep, bool* kept) const {
  ProgressOf reports(progress);
  KeptFit fit{keep.directory, keep.tell};
  const ShiftResult result = fit.Get(impl_->Job(reports), impl_->options);
  if (kept != nullptr) *kept = fit.kept;
  return impl_->Result(result);
}

std::vector<Selection> RepairJob::Select(std::span<const PruneSpec> specs, Progress* progress) const {
  std::vector<PruneSpec> wanted(specs.begin(), specs.end());
  std::erase_if(wanted, [&](const PruneSpec& spec) {
    return impl_->text.fit.empty() && FindCriterion(spec.criterion).needs_calibration();
  });
  ProgressOf reports(progress);
  const CriterionInput input = {impl_->context, impl_->model.impl().model.weights, &impl_->text.fit,
                                impl_->options.seed};
  return SelectLayers(wanted, input, reports);
}

RepairResult Repair(const LanguageModel& model, const Recipe& recipe, const Resources& resources, Progress* progress,
                    const std::filesystem::path& keep) {
  return RepairJob(model, recipe, resources).Run(progress, {.directory = keep});
}

}  // namespace shiftrt
