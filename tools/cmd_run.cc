// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "api/impl.h"
#include "api/repair.h"
#include "engine/generate.h"
#include "eval/perplexity.h"
#include "export/formats.h"
#include "models/adapted.h"
#include "models/provenance.h"
#include "runtime/check.h"
#include "shift/pipeline.h"
#include "shiftrt/finetune.h"
#include "tools/cache.h"
#include "tools/comparison.h"
#include "tools/dry_run.h"
#include "tools/evaluation.h"
#include "tools/export_options.h"
#include "tools/finetune_output.h"
#include "tools/kept_fit.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/recipe.h"
#include "tools/run_report.h"
#include "tools/selection.h"
#include "tools/shift_output.h"
#include "tools/table.h"
#include "tools/texts.h"
#include "tools/variants.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct RunOptions {
  CommonOptions common;
  RecipeOptions recipe;
  ComparisonOptions comparison;
  EvaluationOptions evaluation{.tasks = ""};
  std::string save, report, recover, recover_text;
  bool save_weights = false;
  std::vector<std::string> exports;
  ExportSettings exporting;
  DryRunOptions dry_run;
};

// The run's own criterion, and others that need no more than a pass over the calibration text, at the same amount.
std::vector<Selection> ScoresBeside(const Selection& own, const CriterionInput& input, Progress& progress) {
  std::vector<PruneSpec> specs;
  for (const char* name : {"bi", "angular", "magnitude-l1", "magnitude-l2"}) {
    const bool lacks_text = FindCriterion(name).needs_calibration() && input.calibration->empty();
    if (name != own.criterion && !lacks_text)
      specs.push_back(ParsePrune(fmt::format("{}:{},unit={}", name, UnitsRemoved(own), Name(own.unit))));
  }
  std::vector<Selection> selections = SelectLayers(specs, input, progress);
  selections.insert(selections.begin(), own);
  return selections;
}

void WriteReport(const RunOptions& options, const ShiftJob& shift, const ShiftResult& result,
                 const ComparisonJob& comparison, const std::vector<MeasuredVariant>& variants,
                 std::vector<Section> more) {
  const Model& model = shift.model;
  RunReport report;
  const Selection& selection = result.selection;
  report.title = fmt::format("{}: {} of {} {} removed by {}", model.name, UnitsRemoved(selection),
                             UnitsOf(selection, shift.layers()), UnitsName(selection), selection.criterion);
  report.summary =
      fmt::format("Layers {}. Calibrated on {}{}; perplexity ({}) on {}.", Names(selection.removed), result.calibration,
                  shift.calibration.source.empty() ? "" : fmt::format(" ({})", shift.calibration.Accounting()),
                  options.comparison.protocol, comparison.heldout.Description());
  const CriterionInput input = {shift.context, model.weights, &shift.calibration.fit, options.common.seed};
  report.scores = ScoresBeside(selection, input, shift.progress);
  report.sites = result.sites;
  if (!result.healing || result.healing->kept) report.healed = result.healed;
  if (!result.trials.empty()) report.trials = TrialsTable(result);
  report.untried = result.untried;
  report.comparison = ComparisonTable(variants);
  report.drift = MeasureDrift(shift.context, model.weights, {model.plan, result.pruned, result.corrected},
                              DriftBatches(comparison.heldout.tokens, model.weights->config.max_positions),
                              shift.progress, {.seed = options.common.seed});
  report.prompt = options.comparison.prompt;
  for (const MeasuredVariant& v : variants) report.continuations.emplace_back(v.label, v.continuation);
  report.more = std::move(more);
  if (!shift.context.processes->first()) return;
  WritePage(RunPage(report), options.report);
  fmt::print("report: {}/index.html\n", options.report);
}

// Puts the mode that auto stands for in its place, and says so where adapters are fitted otherwise than by default.
void Settle(ShiftOptions& shift, bool split) {
  const char* why = nullptr;
  shift.mode = ModeOf(shift, split, &why);
  if (why != nullptr) fmt::print("calibration mode {}, because {}\n", Name(shift.mode), why);
}

// The results of the run as --json writes them: without the settings.
Json ResultsJson(Provenance made) {
  made.recipe = {};
  made.state.clear();
  return ProvenanceJson(made);
}

// The wall clock of a run, divided among its phases.
class Phases {
 public:
  // Ends a phase, which began at the last call or at the start, and returns its seconds.
  double Done(const char* phase) {
    const auto now = std::chrono::steady_clock::now();
    spent_.emplace_back(phase, std::chrono::duration<double>(now - last_).count());
    last_ = now;
    return spent_.back().second;
  }
  // Prints the phases that took time, and the sum of all. The fit is shown by its own steps, and by what these leave.
  void Print(const StepSeconds& fit) const {
    std::string line;
    const auto add = [&](const char* phase, double seconds) {
      if (seconds >= 0.05) line += fmt::format(" {} {:.1f},", phase, seconds);
    };
    double total = 0;
    for (const auto& [phase, seconds] : spent_) {
      total += seconds;
      const double rest = seconds - fit.select - fit.calibrate - fit.solve - fit.factorize;
      if (phase != std::string_view(kFit) || rest < 0) {  // the steps may be those of a command that was interrupted
        add(phase, seconds);
        continue;
      }
      line += fmt::format(" select {:.1f}, calibrate {:.1f}, solve {:.2f}, factorize {:.2f},", fit.select,
                          fit.calibrate, fit.solve, fit.factorize);
      add("rest of the fit", rest);
    }
    fmt::print("\nseconds:{} together {:.1f}\n", line, total);
  }
  void AddTo(Json& seconds) const {
    double total = 0;
    for (const auto& [phase, spent] : spent_) {
      seconds[phase] = spent;
      total += spent;
    }
    seconds["total"] = total;
  }

  static constexpr const char* kFit = "fit";

 private:
  std::vector<std::pair<const char*, double>> spent_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void PrintModel(const Model& model) {
  const Weights& weights = *model.weights;
  fmt::print("{}: {} layers, hidden {}, {} parameters, {} per token, {}\n", model.name, weights.config.layers,
             weights.config.hidden, Scaled(static_cast<double>(model.plan.Parameters(weights)), ""),
             Scaled(static_cast<double>(model.plan.BytesPerToken(weights)), "B"), Name(weights.embedding.dtype));
}

// An export to a format without adapters chooses the recipe "stock", unless the user has chosen how to repair.
void ChooseRecipe(RunOptions& options, const CLI::App& app) {
  const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
  if (given("--recipe") || given("--correction") || given("--lra") || given("--gate")) return;
  for (const std::string& text : options.exports) {
    const ExportFormat& format = FindExportFormat(ParseExportTarget(text).format);
    if (format.adapters || !format.own_tensors) continue;
    options.recipe.named = "stock";
    fmt::print("--export {}: {} has no place for adapters, so the recipe is --recipe stock\n", text, format.name);
    return;
  }
}

// The exports that are wanted. Refuses those that cannot work here, not after the hour that calibration may take.
std::vector<ExportTarget> Targets(const RunOptions& options, const ShiftOptions& shift) {
  // `has`: the reason, with the name of what has no place. `instead`: the options with which it works.
  const auto refuse = [](const std::string& text, std::string_view format, const std::string& has,
                         const std::string& instead, const std::vector<std::string_view>& others) {
    FailUsage("--export {}: {}, which {} has no place for; it works with {}{}", text, has, format, instead,
              others.empty() ? "" : fmt::format(", or with --export {}:DIR", fmt::join(others, ":DIR or ")));
  };
  std::vector<ExportTarget> targets;
  std::set<fs::path> taken = {fs::weakly_canonical(options.save)};
  for (const std::string& text : options.exports) {
    const auto& [name, output] = targets.emplace_back(ParseExportTarget(text));
    const ExportFormat& format = FindExportFormat(name);
    const bool corrects = Corrects(shift) && !shift.gate;  // the gate may drop every correction
    const Correction& correction = *shift.correction;
    const bool adapters = corrects && correction.adapters(),
               changes = corrects && (correction.changes_blocks() || shift.heal != Heal::kOff);
    const std::vector<std::string_view> others = FormatsFor(adapters, changes, shift.prune.halves());
    if (shift.prune.halves() && !format.half_blocks)
      refuse(text, name, fmt::format("--prune {} may leave half blocks", shift.prune.text), "whole blocks", others);
    if (!options.recover.empty() && !format.own_tensors)
      refuse(text, name, "--recover changes weights of blocks", "no --recover", FormatsFor(adapters, true, false));
    if (!taken.insert(fs::weakly_canonical(output)).second)
      FailUsage("--export {}: something else is written to this directory too", text);
    const std::string instead = fmt::format("--{}", format.holds != nullptr ? format.holds : "");
    if (adapters && !format.adapters)
      refuse(text, name, fmt::format("--correction {} makes adapters", correction.name), instead, others);
    if (changes && !format.own_tensors)
      refuse(text, name,
             correction.changes_blocks() ? fmt::format("--correction {} changes weights of blocks", correction.name)
                                         : "--heal changes weights of blocks",
             instead, others);
  }
  return targets;
}

// Throws UsageError for options by which one process would write the whole model, or compute from all of its blocks.
void RefuseSplit(const RunOptions& options) {
  const auto refuse = [&](bool given, const char* option, const char* instead) {
    if (given) FailUsage("{} does not work with --split, where no process has the whole model: {}", option, instead);
  };
  const char* const kFromSaved = "save with --save DIR, then start `shiftrt export` on DIR in one process";
  refuse(options.save_weights, "--save-weights", kFromSaved);
  refuse(!options.exports.empty(), "--export", kFromSaved);
  refuse(!options.recover.empty(), "--recover",
         "save with --save DIR, then start `shiftrt finetune --preset recover` on DIR in one process");
  refuse(!options.report.empty(), "--report", "leave it out; --json has the numbers");
}

// The text to learn from: what was named, or the text that the fit was calibrated on.
std::string RecoveryText(const RunOptions& options, const Model& model) {
  if (options.recover_text.empty()) return CalibrationFor(options.recipe.calib, model, options.common).source;
  PullMissingTexts(options.recover_text, options.common);
  return options.recover_text;
}

// The file that keeps an interrupted recovery: beside the directory that is saved, or in the cache.
fs::path RecoveryCheckpoint(const RunOptions& options, const LanguageModel& repaired) {
  fs::path save = options.save;
  if (!save.has_filename()) save = save.parent_path();  // "out/"
  if (!save.empty()) return save.string() + ".checkpoint";
  const Model& model = repaired.impl().model;
  return CachePath("recover-" +
                   HashHex(fmt::format("{} {} {} {} {}", model.weights->Fingerprint(), model.plan.Fingerprint(),
                                       options.recover, options.recover_text, options.common.seed)) +
                   ".checkpoint");
}

// Trains the repaired model, with the original one as its teacher, and adds the result to the variants.
FinetunedModel Recover(const RunOptions& options, const Context& context, const LanguageModel& repaired,
                       const fs::path& checkpoint, std::vector<Variant>& variants) {
  FinetuneSettings settings = RecoverySettings(ParseTrainingBudget(options.recover));
  settings.adapters = repaired.Adapters() > 0;
  settings.text = RecoveryText(options, repaired.impl().model);
  settings.seed = options.common.seed;
  settings.checkpoint = checkpoint;
  FinetunedModel result = TrainShown(repaired, settings, {.prepared = std::make_shared<const Context>(context)},
                                     {"", /*describes=*/true, options.common.quiet, context.processes->first()});
  variants.push_back(
      {VariantKind::kCorrected, "recovered", variants.back().label + ", recovered", result.model.impl().model.plan});
  fmt::print("recovered with {} tokens in {} steps: the state after step {} is kept\n\n", result.history.tokens,
             result.history.steps(), result.history.BestStep());
  return result;
}

int Plan(const RunOptions& options, const ShiftOptions& shift) {
  std::vector<std::string> besides;
  if (!options.evaluation.tasks.empty()) besides.emplace_back("--eval");
  if (!options.recover.empty()) besides.emplace_back("--recover");
  if (!options.report.empty()) besides.emplace_back("--report");
  PrintDryRun({options.dry_run, options.common, options.comparison, shift, options.recipe.calib, besides});
  return 0;
}

int Run(const RunOptions& options) {
  Phases phases;
  ShiftOptions shift = options.recipe.Parse(options.common.seed);
  if (options.save_weights && options.save.empty()) FailUsage("--save-weights goes with --save DIR");
  const std::vector<ExportTarget> exports = Targets(options, shift);
  if (!options.recover.empty()) ParseTrainingBudget(options.recover);  // what is wrong with it is said first
  if (options.dry_run.wanted) return Plan(options, shift);
  const std::vector<Dataset> datasets =
      options.evaluation.tasks.empty() ? std::vector<Dataset>() : options.evaluation.Load(options.common);
  const Context context = options.common.MakeContext();
  const bool first = context.processes->first();
  const Model model = options.common.Open();
  if (model.weights->split()) RefuseSplit(options);
  if (model.provenance) FailUsage("{} is already pruned; give the model it was made from", options.common.model);
  const ModelConfig& config = model.weights->config;
  CheckOptions(shift, config, model.weights->split());
  // Said now, not after the hour that calibration may take.
  const std::vector<int32_t> prompt = PromptTokens(model, options.comparison.prompt, options.comparison.chat);
  CheckFits(std::ssize(prompt), options.comparison.max_tokens, config);
  const CalibrationSet calibration = options.recipe.OpenText(shift, model, options.common, context.device);
  context.processes->CheckSame("calibration text (hash)", calibration.hash);
  const HeldOutChoice choice = {options.comparison.text, options.recipe.calib.empty(), !calibration.fit.empty()};
  HeldOutText heldout = OpenHeldOut(choice, model, calibration, options.common);
  if (!heldout.Scored() && !options.report.empty())
    FailUsage("--report shows measurements on held-out text; give one with --text FILE");
  if (!options.recover.empty() && options.recover_text.empty() && heldout.of_calibration)
    FailUsage(
        "--recover learns from the whole calibration text, so its held-out samples are no test; give another text with "
        "--text FILE, or one to learn from with --recover-text FILE");
  heldout.Limit(options.comparison.text_tokens, ProtocolWindow(options.comparison.protocol, config));
  const auto progress = options.common.MakeProgress();
  const ShiftJob job = {context, model, calibration, *progress};

  PrintModel(model);
  Settle(shift, model.weights->split());
  if (!calibration.source.empty())
    fmt::print("calibration: {}\n  {}\n\n", calibration.source, calibration.Accounting());
  CommandFit kept(job, shift);
  phases.Done("open");
  const ShiftResult result = kept.Get(job, shift);
  phases.Done(Phases::kFit);
  if (!options.recipe.load_gram.empty())
    fmt::print("sums of {}: {}\n\n", fmt::join(options.recipe.load_gram, ", "), result.calibration);
  PrintShift(result, config.layers);

  std::vector<Variant> variants = VariantsOf(model, result, shift);
  Provenance made = ProvenanceOf(model.name, shift, calibration, result);
  made.state = "fitted";                 // a run that is killed leaves this, and the same command then completes it
  if (first && !options.save.empty()) {  // before the evaluation, which may be interrupted
    SaveAdapted(model, variants.back().plan, made, options.save_weights, options.save);
    phases.Done("save");
  }
  std::vector<Section> sections;  // of the report
  Json recovery;
  fs::path checkpoint;
  if (!options.recover.empty()) {
    const LanguageModel repaired = WithPlan(model, variants.back().plan, made);
    checkpoint = RecoveryCheckpoint(options, repaired);
    const FinetunedModel recovered = Recover(options, context, repaired, checkpoint, variants);
    made = *recovered.model.MadeBy();
    if (first && !options.save.empty())
      SaveAdapted(model, variants.back().plan, made, options.save_weights, options.save);
    const TrainingOutcome outcome = {"",
                                     recovered.history,
                                     /*kept_best=*/true,
                                     recovered.parameters,
                                     recovered.peak_bytes,
                                     recovered.kept_blocks};
    recovery = TrainingJson(outcome);
    for (Section& section : TrainingPage("", "", {outcome}).sections) {
      section.heading = "Recovery: " + section.heading;
      sections.push_back(std::move(section));
    }
    phases.Done("recover");
  }

  const ComparisonJob comparison = {context, model, heldout, options.comparison, options.common.seed, *progress};
  made.variants = Compare(comparison, variants);
  if (heldout.Scored()) made.heldout = heldout.Report(options.comparison.protocol, config);
  made.repair->seconds.evaluate = phases.Done("evaluate");
  PrintComparison(comparison, made.variants);
  made.state = "evaluated";
  if (first && !options.save.empty()) {
    RecordProvenance(options.save, made);
    fmt::print("saved: {}\n", options.save);
  }
  Json json = ResultsJson(made);
  if (!recovery.is_null()) json["recovery"] = recovery;
  if (!datasets.empty()) {
    fmt::print("\n");
    const Selection& selection = result.selection;
    const PaperSetting paper = PaperSettingOf(model, selection.criterion, selection.removed, config.layers);
    EvaluationResult suites = RunEvaluation({context, model, variants, paper, *progress}, datasets, options.evaluation);
    json["evaluation"] = std::move(suites.json);
    sections.push_back(std::move(suites.section));
    phases.Done("suites");
  }
  if (!options.report.empty()) {
    WriteReport(options, job, result, comparison, made.variants, std::move(sections));
    phases.Done("report");
  }
  const LanguageModel made_model = WithPlan(model, variants.back().plan, made);
  const Resources alone = {.prepared = std::make_shared<const Context>(context.Alone())};
  for (const ExportTarget& target : first ? exports : std::vector<ExportTarget>()) {
    ExportSettings settings = options.exporting;
    settings.format = target.format;
    PrintExport(target, Export(made_model, target.output, settings, alone, progress.get()));
  }
  phases.Done("export");
  phases.AddTo(json["seconds"]);
  options.common.WriteJson(json);
  kept.Done();
  std::error_code ignored;
  if (first && !checkpoint.empty()) fs::remove(checkpoint, ignored);
  phases.Print(result.seconds);
  return 0;
}

}  // namespace

Command AddRun(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<RunOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "calibration samples, random selection and sampling");
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  options->common.AddMemoryTo(app);
  options->common.AddSplitTo(app);
  options->recipe.AddTo(app);
  options->comparison.AddTo(app);
  CLI::Option* const recover = app.add_option(
      "--recover", options->recover,
      "after the repair, train all kept blocks, the adapters and the head for so long, with the original model as\n"
      "the teacher: a time (30min, 2h) or tokens=1M. The best state on held-out text is kept. An interrupted run\n"
      "continues from its last checkpoint; with tokens, to the same bits");
  app.add_option(
         "--recover-text", options->recover_text,
         "text to learn from: FILE, or c4, wikitext2 or alpaca, or several with commas between them, which are mixed\n"
         "(default: the whole text of --calib)")
      ->needs(recover);
  app.add_option("--report", options->report, "write an HTML page with tables and charts to this directory")
      ->check(DirectoryOutput());
  app.add_option("--save", options->save, "write the depth plan, adapters and changed weights to this directory")
      ->check(DirectoryOutput());
  app.add_flag("--save-weights", options->save_weights,
               "with --save: write all kept weights, so that the directory needs no base model");
  auto* exports =
      app.add_option(
             "--export", options->exports,
             "FORMAT:DIR, repeatable: write the last variant for other programs, as `shiftrt export` does. hf and\n"
             "gguf have no place for adapters; --recipe stock is then the default. Half blocks go to hf-lra alone")
          ->allow_extra_args(false);
  for (CLI::Option* option : AddExportOptions(app, options->exporting)) option->needs(exports);
  options->evaluation.AddTo(app, "--eval");
  options->dry_run.AddTo(app);
  app.footer(
      "Criteria:" + CriteriaHelp() +
      "\n\n`shiftrt inspect --options` prints which criteria, corrections and other options each option goes with.\n"
      "\nExamples:\n  shiftrt run --model demo --prune bi:0.25 --lra 64\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --calib c4.jsonl --text wiki.test.raw --save out\n"
      "  shiftrt run --model demo --recipe stock --export hf:out-hf\n"
      "  shiftrt run --model demo --save-gram demo.gram --gram-layers all\n"
      "  shiftrt run --model demo --load-gram demo.gram --prune bi:0.4 --lra full --lambda 1e-3rel\n"
      "  shiftrt run --model demo --recipe paper --prune \"reverse*:0.25\"\n"
      "  shiftrt run --model demo --prune streamline:4 --span --calibration-mode sequential --token-weight norm\n"
      "  shiftrt run --model demo --prune ppl-greedy:4,tokens=8192 --correction replaceme\n"
      "  shiftrt run --model demo --prune bi:6 --correction auto --gate\n"
      "  shiftrt run --model demo --prune streamline:4 --correction linearpatch\n"
      "  shiftrt run --model demo --prune prune-comp:0.25 --correction prune-comp --export hf:out-hf\n"
      "  shiftrt run --model demo --prune bi:0.25,keep=first:1 --correction refit --save out\n"
      "  shiftrt run --model demo --prune bi:0.25,unit=half --calibration-mode drift --lra 64\n"
      "  shiftrt run --model demo --prune layers=5.mlp-6,9.attn --correction joint --lra full\n"
      "  shiftrt run --model demo --prune bi:0.25,keep=first:1 --correction joint --lra full --heal all\n"
      "  shiftrt run --model demo --prune bi:0.25 --correction joint --lra 64 --recover 30min --save out\n"
      "  shiftrt run --model SmolLM2-135M-Instruct --calib c4.jsonl --chat --prompt \"Why is the sky blue?\"\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --lra 64 --calib c4.jsonl --eval paper7 --data ~/data\n"
      "  shiftrt run --model qwen2-1.5b --prune \"reverse*:7\" --lra full --merge full --calib c4.jsonl --save out\n"
      "  shiftrt run --model demo --prune bi:0.25 --correction replaceme --export hf:out-hf\n"
      "  shiftrt run --config Llama-3.1-405B/config.json --dry-run --hardware h100 --devices 16,32,64\n"
      "  mpirun -n 4 shiftrt run --model demo --prune bi:0.25 --lra 64    (docs/scale.md)\n"
      "  mpirun -n 4 shiftrt run --model Llama-2-70b-hf --prune bi:0.25 --lra 64 --calib c4.jsonl --split 4 --save "
      "out");
  return [options, &app] {
    ChooseRecipe(*options, app);
    options->recipe.TakeNamed(app);
    return Run(*options);
  };
}

}  // namespace shiftrt
