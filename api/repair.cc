// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/repair.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "api/impl.h"
#include "api/kept_fit.h"
#include "api/repair.h"
#include "models/as_original.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/processes.h"
#include "shift/quantise/quantise.h"
#include "shift/recipe_fields.h"

namespace shiftrt {

namespace {

CalibrationSet LoadText(const Recipe& recipe, const Model& model, Device device) {
  if (recipe.text.source.empty() && !ReadsText(recipe)) return {};
  return LoadCalibration(TextOf(recipe.text, model, "text"), model.RequireTokenizer(), recipe.seed,
                         CalibrationBatchTokens(device));
}

// True if anything is put in the place of the removed blocks, or kept blocks are healed.
bool Corrects(const Recipe& recipe) {
  return CorrectionOf(recipe).makes != Makes::kNothing || recipe.heal != Heal::kOff;
}

// "none" is not a name for a plan with something in it.
std::string VariantName(const Recipe& recipe) {
  const std::string name = CorrectionName(recipe);
  return name == "none" ? "healed" : name;
}

// Says for tables what stands in the place of the removed blocks, and what else was fitted again.
std::string VariantLabel(const Recipe& recipe, const ShiftResult& result) {
  const auto label = [&](std::string_view correction) {
    return Label(FindCorrection(correction), recipe.rank, recipe.span);
  };
  const TrialReport* const trial = ChosenOf(result.trials);
  const std::string text =
      trial == nullptr ? label(CorrectionName(recipe)) : fmt::format("auto ({})", label(trial->correction));
  const bool healed = recipe.heal != Heal::kOff && (!result.healing || result.healing->kept);
  const std::string rounded = recipe.quantise.any() ? ", " + recipe.quantise.mixture : "";
  if (result.gain && !result.gain->kept) return text + " (left out)" + rounded;
  return (healed ? fmt::format("{}, healed ({})", text, Name(recipe.heal)) : text) + rounded;
}

}  // namespace

CalibrationSpec TextOf(CalibrationSpec spec, const Model& model, const char* field) {
  if (spec.source.empty()) {
    const std::filesystem::path text = model.directory / "calibration.txt";
    if (!Exists(text)) FailUsage(Field(field), "there is no {}; give a file with calibration text", text.string());
    spec.source = text.string();
  } else if (!Exists(std::string(spec.source))) {
    const CalibrationSpec parsed = ParseCalibration(spec.source);
    if (parsed.source != spec.source) spec = parsed;
  }
  const int64_t most = model.weights->config.max_positions;
  if (spec.tokens > most && spec.tokens > CalibrationSpec().tokens)
    FailUsage(Field(field), "{}: samples of {} tokens exceed the {} positions of the model; ask for at most {}x{}",
              spec.source, spec.tokens, most, spec.samples, most);
  spec.tokens = std::min(spec.tokens, most);
  return spec;
}

void CheckOriginal(const Model& model) {
  const int64_t layers = model.weights->config.layers;
  if (model.plan == DepthPlan::Original(layers)) return;
  const std::vector<const BlockStage*> blocks = model.plan.Blocks();
  const bool whole =
      std::ssize(blocks) == layers && model.plan.Adapters().empty() &&
      std::all_of(blocks.begin(), blocks.end(), [](const BlockStage* block) { return block->halves == Halves::kBoth; });
  if (whole)
    FailUsage(Field("model"), "{} is not an original model, because it has {}; give the model it was made from",
              model.name, model.lora ? "LoRA factors" : "tensors of its own");
  FailUsage(Field("model"), "{} is already pruned; give the model it was made from", model.name);
}

Provenance ProvenanceOf(const std::string& model, const Recipe& recipe, const CalibrationSet& text,
                        const ShiftResult& result) {
  Provenance made;
  made.model = model;
  made.criterion = result.selection.criterion;
  made.recipe = RecipeTextOf(recipe);
  made.calibration.emplace();
  if (!recipe.gram.load.empty() || ReadsText(recipe, /*scored=*/false))
    made.calibration = {.source = result.calibration,
                        .hash = text.hash,
                        .tokens = result.sites.empty() ? text.fit_tokens : result.sites.front().tokens,
                        .heldout_tokens = text.heldout_tokens};
  made.repair = result;
  return made;
}

RepairEffects EffectsOf(const Recipe& recipe) {
  const Correction& correction = CorrectionOf(recipe);
  return {correction.adapters(), correction.changes_blocks() || recipe.heal != Heal::kOff || recipe.quantise.any(),
          correction.normed_adapters()};
}

std::string CorrectionName(const LanguageModel& model, const Recipe& recipe) {
  const Weights& weights = *model.impl().model.weights;
  return WithCorrection(recipe, weights.config, weights.split()).correction;
}

std::vector<std::string> VariantNames(const Recipe& recipe) {
  std::vector<std::string> names = {"original", "pruned"};
  if (Corrects(recipe)) names.push_back(VariantName(recipe));
  if (recipe.merge != Merge::kOff) names.emplace_back("merged");
  return names;
}

namespace {

// The recipe with the numbers that layers have in AsOriginal(saved).
Recipe ForOriginal(Recipe recipe, const Model& saved) {
  recipe.prune.layers = NumbersInOriginal(recipe.prune.layers, saved);
  return recipe;
}

// Throws UsageError for what cannot be done to a model that is pruned or fine-tuned already.
void CheckStep(const Recipe& recipe, const Model& saved, const Weights& original) {
  if (saved.weights.get() == &original) return;
  const auto refuse = [&](bool given, const char* field, const char* what, const char* instead) {
    if (given)
      FailUsage(Field(field), "{} does not take the model {}, which is pruned or fine-tuned already; {}", what,
                saved.name, instead);
  };
  refuse(recipe.gram.used(), "gram.load", "a file of sums", "leave it out");
  if (original.adapters.empty()) return;
  const char* const adapters = "its adapters belong to whole blocks: give another criterion, or the original model";
  refuse(recipe.prune.halves(), "prune", "removing halves of blocks", adapters);
  refuse(recipe.prune.criterion == "taylor", "prune", "the criterion taylor", adapters);
  refuse(recipe.correction == "laco", "correction", "laco",
         "its adapters are no weights to merge: give joint or refit");
}

// The scores by the layers of `saved`; NaN for a layer that it lacks.
std::vector<double> ScoresInSaved(const std::vector<double>& scores, const Selection& selection, const Model& saved) {
  std::vector<double> numbered;
  for (size_t unit = 0; unit < scores.size(); ++unit) {
    const int64_t step = selection.unit == Unit::kHalf ? 2 : 1, at = static_cast<int64_t>(unit);
    const std::vector<BlockPart> block = {at / step};
    const int64_t place = step * NumbersInSaved(block, saved).front().layer + at % step;
    numbered.resize(place + 1, std::numeric_limits<double>::quiet_NaN());
    numbered.back() = scores[unit];
  }
  return numbered;
}

void NumberInSaved(Selection& selection, const Model& saved) {
  selection.scores = ScoresInSaved(selection.scores, selection, saved);
  selection.removed = NumbersInSaved(selection.removed, saved);
}

// The findings of a repair of AsOriginal(saved), with the numbers of layers and the plans of `saved`.
ShiftResult InSaved(ShiftResult result, const Model& saved) {
  NumberInSaved(result.selection, saved);
  for (CutReport& cut : result.cuts) cut.removed = NumbersInSaved(cut.removed, saved);
  for (std::vector<FitReport>* fits : {&result.sites, &result.healed, &result.merged_runs})
    for (FitReport& fit : *fits) {
      fit.layers = NumbersInSaved(fit.layers, saved);
      fit.name = SpanName(fit.layers);
    }
  if (result.healing) result.healing->parts = NumbersInSaved(result.healing->parts, saved);
  for (GateVerdict& verdict : result.gate) verdict.parts = NumbersInSaved(verdict.parts, saved);
  for (DepthPlan* plan : {&result.pruned, &result.corrected}) *plan = OverSaved(*plan, saved);
  if (result.merged) result.merged = OverSaved(*result.merged, saved);
  return result;
}

}  // namespace

void CheckRecipe(const LanguageModel& model, const Recipe& recipe) {
  const Model& saved = model.impl().model;
  const Model original = AsOriginal(saved);
  CheckStep(recipe, saved, *original.weights);
  const Recipe job = ForOriginal(recipe, saved);
  CheckOptions(WithCorrection(job, original.weights->config, original.weights->split()), original.weights->config,
               original.weights->split());
  RemovalCount(job.prune, *original.weights);  // throws for what cannot be removed
}

struct RepairJob::Impl {
  Impl(const LanguageModel& model, const Recipe& recipe, const Resources& resources)
      : model(model),
        original(AsOriginal(model.impl().model)),
        recipe(recipe),
        context(MakeContext(resources).ReducedPrecision()),
        text(LoadText(recipe, model.impl().model, context.device)),
        report{text.source, text.hash, text.fit_tokens, text.heldout_tokens} {
    const Weights& weights = *model.impl().model.weights;
    this->recipe = WithCorrection(recipe, weights.config, weights.split(), &why_correction);
    this->recipe.mode = ModeOf(this->recipe, weights.split(), &why);
  }
  const Model& saved() const { return model.impl().model; }
  ShiftJob Job(Progress& progress) const { return {context, original, text, progress}; }
  Recipe JobRecipe() const { return ForOriginal(recipe, saved()); }
  RepairResult Result(const ShiftResult& result) const;

  LanguageModel model;
  Model original;  // the model for the repair, which may be a step after an earlier one
  Recipe recipe;   // its mode is not kAuto, and its correction has a name
  const char* why = nullptr;
  std::string why_correction;
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
std::string RepairJob::Accounting() const {
  return impl_->text.Accounting() + (impl_->context.products == Products::kBFloat16 ? "; products in bfloat16" : "");
}
Calibration RepairJob::Mode() const { return impl_->recipe.mode; }
std::string RepairJob::Correction() const { return impl_->recipe.correction; }
std::string RepairJob::WhyCorrection() const { return impl_->why_correction; }
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
  return FitKey(impl_->Job(quiet), impl_->JobRecipe());
}

RepairResult RepairJob::Impl::Result(const ShiftResult& found) const {
  const ShiftResult result = InSaved(found, saved());
  const std::string name = saved().provenance ? saved().provenance->model : saved().name;
  const Provenance made = ProvenanceOf(name.empty() ? saved().name : name, recipe, text, result);
  Provenance bare = made;  // the provenance of the model without its correction
  bare.recipe = {.prune = made.recipe.prune, .correction = "none", .merge = "off", .quantise = made.recipe.quantise};
  RepairResult repair{.report = *made.repair,
                      .pruned = WithPlan(saved(), result.pruned, std::move(bare)),
                      .corrected = WithPlan(saved(), result.corrected, made),
                      .merged = std::nullopt,
                      .variants = {{"original", "original", model}}};
  const bool corrects = Corrects(recipe);
  repair.variants.push_back({"pruned", "pruned", corrects ? repair.pruned : repair.corrected});
  if (corrects)
    repair.variants.push_back({VariantName(recipe), "pruned + " + VariantLabel(recipe, result), repair.corrected});
  if (result.merged) {
    repair.merged = WithPlan(saved(), *result.merged, made);
    repair.variants.push_back({"merged", fmt::format("merged ({})", Name(recipe.merge)), *repair.merged});
  }
  return repair;
}

RepairResult RepairJob::Run(Progress* progress, const KeepSettings& keep, bool* kept) const {
  ProgressOf reports(progress);
  const auto turn = impl_->context.TakeTurn();
  KeptFit fit{keep.directory, keep.tell};
  const ShiftResult result = fit.Get(impl_->Job(reports), impl_->JobRecipe());
  if (kept != nullptr) *kept = fit.kept;
  return impl_->Result(result);
}

std::vector<Selection> RepairJob::Select(std::span<const PruneSpec> specs, Progress* progress) const {
  std::vector<PruneSpec> wanted(specs.begin(), specs.end());
  for (PruneSpec& spec : wanted) spec.layers = NumbersInOriginal(spec.layers, impl_->saved());
  std::erase_if(wanted, [&](const PruneSpec& spec) {
    return impl_->text.fit.empty() && FindCriterion(spec.criterion).needs_calibration();
  });
  ProgressOf reports(progress);
  const auto turn = impl_->context.TakeTurn();
  const CriterionInput input = {impl_->context, impl_->original.weights, &impl_->text.fit, impl_->recipe.seed};
  std::vector<Selection> selections = SelectLayers(wanted, input, reports);
  for (Selection& selection : selections) NumberInSaved(selection, impl_->saved());
  return selections;
}

LanguageModel Quantise(const LanguageModel& model, const QuantiseSpec& spec, const CalibrationSpec& text, uint64_t seed,
                       const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const Context context = MakeContext(resources).ReducedPrecision();
  CheckRounds(context, *inner.weights);
  CalibrationSet calibration;
  if (spec.reads_text())
    calibration = LoadCalibration(TextOf(text, inner, "text"), inner.RequireTokenizer(), seed,
                                  CalibrationBatchTokens(context.device));
  ProgressOf reports(progress);
  const auto turn = context.TakeTurn();
  QuantisedPlan rounded = Quantise({context, inner, calibration, reports}, inner.plan, spec);
  Provenance made = inner.provenance.value_or(Provenance{.model = inner.name});
  made.recipe.quantise = Format(spec);
  if (!made.repair) made.repair.emplace();
  made.repair->quantised = std::move(rounded.report);
  return WithPlan(inner, rounded.plan, std::move(made));
}

RepairResult Repair(const LanguageModel& model, const Recipe& recipe, const Resources& resources, Progress* progress,
                    const std::filesystem::path& keep) {
  return RepairJob(model, recipe, resources).Run(progress, {.directory = keep});
}

}  // namespace shiftrt
