// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "shiftrt/compare.h"
#include "shiftrt/finetune.h"
#include "shiftrt/repair.h"
#include "tools/cache.h"
#include "tools/comparison.h"
#include "tools/dry_run.h"
#include "tools/evaluation.h"
#include "tools/export_options.h"
#include "tools/fidelity_output.h"
#include "tools/finetune_options.h"
#include "tools/finetune_output.h"
#include "tools/kept_fit.h"
#include "tools/options.h"
#include "tools/outputs.h"
#include "tools/recipe.h"
#include "tools/report_output.h"
#include "tools/run_report.h"
#include "tools/selection.h"
#include "tools/shift_output.h"
#include "tools/standard_output.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct RunOptions {
  CommonOptions common;
  RecipeOptions recipe;
  ComparisonOptions comparison;
  EvaluationOptions evaluation{""};
  std::string save, report, recover, recover_text, recover_loss = Name(RecoverySettings().loss);
  double recover_rate = 0;  // 0: by hidden size
  bool save_weights = false, no_gate = false;
  std::vector<std::string> exports;
  ExportSettings exporting;
  DryRunOptions dry_run;
};

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
  // Prints the phases that took at least 0.05 s, and the total. The fit is shown as its steps and the rest of its time.
  void Print(const RepairSeconds& fit) const {
    std::string line;
    const auto add = [&](const char* phase, double seconds) {
      if (seconds >= 0.05) line += fmt::format(" {} {:.1f},", phase, seconds);
    };
    double total = 0;
    for (const auto& [phase, seconds] : spent_) {
      total += seconds;
      const double rest = seconds - fit.select - fit.calibrate - fit.solve - fit.factorize - fit.quantise;
      if (phase != std::string_view(kFit) || rest < 0) {  // the steps may be those of a command that was interrupted
        add(phase, seconds);
        continue;
      }
      line += fmt::format(" select {:.1f}, calibrate {:.1f}, solve {:.2f}, factorize {:.2f},", fit.select,
                          fit.calibrate, fit.solve, fit.factorize);
      add("round", fit.quantise);
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

void PrintModel(const LanguageModel& model) {
  const int64_t layers = model.Shape().layers, blocks = model.Blocks(), adapters = model.Adapters();
  std::string counted = fmt::format("{} layers", layers);
  if (blocks < layers || adapters > 0)
    counted = fmt::format("pruned already to {} of {} layers with {} adapter{}", blocks, layers, adapters,
                          adapters == 1 ? "" : "s");
  fmt::print("{}: {}, hidden {}, {} parameters, {} per token, {}\n", model.Name(), counted, model.Shape().hidden,
             Scaled(static_cast<double>(model.Parameters()), ""),
             Scaled(static_cast<double>(model.BytesPerToken()), "B"), model.WeightTypeName());
}

// An export to a format without adapters chooses the recipe "stock", unless the user has chosen how to repair.
void ChooseRecipe(RunOptions& options, const CLI::App& app) {
  const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
  if (given("--recipe") || given("--correction") || given("--lra") || given("--gate")) return;
  for (const std::string& text : options.exports) {
    const ExportFormatName format = FormatOf(ParseExportTarget(text));
    if (format.adapters || !format.own_tensors) continue;
    options.recipe.named = "stock";
    fmt::print("--export {}: {} has no place for the adapters of the default, so the recipe is --recipe stock\n", text,
               format.name);
    return;
  }
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

// The texts and prompts that --recover-text names.
std::string RecoveryNames(const RunOptions& options) {
  try {
    return NamesIn(options.recover_text);
  } catch (const UsageError& error) {  // its field is that of a training, which is --calib of `finetune`
    throw UsageError("recover_text", error.reason());
  }
}

// The text to learn from: what was named, or the text that the fit was calibrated on.
std::string RecoveryText(const RunOptions& options, const LanguageModel& model) {
  if (options.recover_text.empty()) return CalibrationFor(options.recipe.calib, model, options.common).source;
  return options.recover_text;
}

// An interrupted recovery is kept next to the directory that is saved, or in the cache.
FinetuneSettings RecoveryOf(const RunOptions& options, const LanguageModel& repaired, const Resources& resources) {
  FinetuneSettings settings = RecoverySettings(ParseTrainingBudget(options.recover));
  settings.loss = ParseTrainingLoss(options.recover_loss);
  settings.rate = options.recover_rate;
  settings.adapters = repaired.Adapters() > 0;
  settings.text = RecoveryText(options, repaired);
  settings.seed = options.common.seed;
  settings.checkpoint =
      options.save.empty() ? CachedCheckpoint(repaired, settings, resources) : CheckpointFor(options.save);
  return settings;
}

// Trains the repaired model.
FinetunedModel Recover(const RunOptions& options, const LanguageModel& repaired, const FinetuneSettings& settings,
                       const Resources& resources) {
  FinetunedModel result = TrainShown(repaired, settings, resources,
                                     {"", /*describes=*/true, options.common.quiet, options.common.processes->first()});
  fmt::print("recovered with {} tokens in {} steps: the state after step {} is kept\n\n", result.history.tokens,
             result.history.steps(), result.history.BestStep());
  if (result.history.BestStep() == 0)
    fmt::print(stderr,
               "shiftrt: no step of the training lowered the loss on held-out text: give a lower rate "
               "(--recover-rate {:g}), or a longer --recover\n",
               (options.recover_rate > 0 ? options.recover_rate : RecoveryRate(repaired.Shape().hidden)) / 5);
  WarnOfRounding(result.rounding, SavedChange::kRounded);
  return result;
}

// The recovery for --json; its charts are added to `sections`.
Json RecoveryJson(const FinetunedModel& recovered, std::vector<Section>& sections) {
  const TrainingOutcome outcome = {"", recovered, /*kept_best=*/true};
  for (Section& section : TrainingPage("", "", {outcome}).sections) {
    section.heading = "Recovery: " + section.heading;
    sections.push_back(std::move(section));
  }
  return TrainingJson(outcome);
}

// True for a recipe that chooses something by the loss on held-out samples of the calibration text.
bool ChoosesByHeldOut(const Recipe& recipe) {
  return recipe.gate || recipe.heal != Heal::kOff || recipe.correction == "auto" ||
         recipe.lambda.kind == LambdaSpec::Kind::kHoldout;
}

// True for a run that hands over its repair whatever it does: the user says so, or a named recipe that has no gate.
bool KeepsAll(const RunOptions& options) {
  if (options.no_gate || !options.recover.empty()) return true;  // a recovery trains the adapters on
  if (options.recipe.named.empty()) return false;
  const auto& settings = std::ranges::find(NamedRecipes(), options.recipe.named, &NamedRecipe::name)->settings;
  return std::any_of(settings.begin(), settings.end(), [](const auto& setting) {
    return setting.first == std::string_view("gate") && setting.second == std::string_view("false");
  });
}

DryRun Planned(const RunOptions& options, const Recipe& recipe) {
  std::vector<std::string> besides;
  if (!options.evaluation.tasks().empty()) besides.emplace_back("--eval");
  if (!options.report.empty()) besides.emplace_back("--report");
  if (HasOwnTexts(options.recover_text) && ParseTrainingBudget(options.recover).tokens > 0)
    besides.emplace_back("the answers of --recover-text own");
  if (recipe.quantise.any()) besides.emplace_back("the rounding of --quantize");
  return {options.dry_run,      options.common, options.comparison, recipe,
          options.recipe.calib, besides,        options.recover,    options.recover_loss};
}

ExportSettings ExportingTo(const ExportTarget& target, const RunOptions& options) {
  ExportSettings settings = options.exporting;
  settings.format = target.format;
  return settings;
}

// The recipe of the options. Throws UsageError for options that do not go together, before any file is opened.
Recipe RecipeOf(const RunOptions& options) {
  Recipe recipe = options.recipe.Parse(options.common.seed);
  recipe.benefit = KeepsAll(options) ? Benefit::kMeasured : Benefit::kRequired;
  if (options.save_weights && options.save.empty()) FailUsage("--save-weights goes with --save DIR");
  if (options.recover.empty()) return recipe;
  if (recipe.quantise.any())
    FailUsage(
        "--recover does not go with --quantize: what it trains gets 16 bits. Save the recovered model, and round it: "
        "shiftrt export --model DIR --format gguf --quantize {} --save GGUF_DIR",
        recipe.quantise.mixture);
  ParseTrainingBudget(options.recover);
  ParseTrainingLoss(options.recover_loss);
  return recipe;
}

// Checks that the held-out text can measure what the options ask for, and says where it is no independent test.
void CheckHeldOut(const RunOptions& options, const Recipe& recipe, const HeldOutText& heldout) {
  if (!heldout.Scored() && !options.report.empty())
    FailUsage("--report shows measurements on held-out text; give one with --text FILE");
  const std::string& text = options.comparison.text;
  if (!text.empty() && (ShareText(text, recipe.text.source) || ShareText(text, RecoveryNames(options))))
    Tell("the model is fitted to or trained on the text of --text, so that the perplexities are no independent test");
  if (!heldout.of_calibration) return;
  if (!options.recover.empty() &&
      (options.recover_text.empty() || ShareText(RecoveryNames(options), recipe.text.source)))
    FailUsage(
        "--recover learns from the whole calibration text, so its held-out samples are no test; give another text with "
        "--text FILE, or one to learn from with --recover-text FILE");
  if (ChoosesByHeldOut(recipe))
    Tell(
        "the perplexities are of the held-out samples by which this recipe chooses, so that they are no "
        "independent test; --text FILE measures another text");
}

// Prints what is about to be done, and about how long it takes.
void PrintJob(const RunOptions& options, const LanguageModel& model, const Recipe& recipe, const RepairJob& job,
              int64_t heldout_tokens) {
  PrintModel(model);
  if (const std::string why = job.WhyCorrection(); !why.empty())
    fmt::print("correction {}, because {}\n", job.Correction(), why);
  if (const std::string why = job.WhyMode(); !why.empty())
    fmt::print("calibration mode {}, because {}\n", Name(job.Mode()), why);
  const CalibrationReport& text = job.Text();
  if (!text.source.empty()) fmt::print("calibration: {}\n  {}\n\n", text.source, job.Accounting());
  fmt::print("{}", TimeAhead(Planned(options, recipe), model, {text.tokens + text.heldout_tokens, heldout_tokens}));
  std::fflush(stdout);
}

int Run(const RunOptions& options) {
  Phases phases;
  Recipe recipe = RecipeOf(options);
  const std::vector<ExportTarget> exports =
      ParseExportTargets(options.exports, options.save, !options.recover.empty(), recipe);
  if (options.dry_run.wanted) {
    PrintDryRun(Planned(options, recipe));
    return 0;
  }
  const Resources resources = options.common.MakeResources();
  const bool first = options.common.processes->first();
  RefuseMissingTextsBeforePull(options.common, {options.comparison.text, RecoveryNames(options)});
  const LanguageModel model = options.common.OpenLanguageModel();
  CheckRecipe(model, recipe);
  CheckRemoval(model, recipe.prune, options.recipe.yes);
  RefuseMissingTexts({options.comparison.text, RecoveryNames(options)});
  const Suites suites = options.evaluation.Load(options.common);
  if (!options.save.empty()) RefuseSavingOver(model, options.common.model, options.save);
  if (options.common.processes->split()) {
    RefuseSplit(options);
    if (first && !KeepsAll(options))
      Tell("with --split, what the repair gains is not measured, and the repair is kept whatever it does");
  }
  // Checked before the calibration, which may take an hour.
  const ComparisonSettings settings = options.comparison.Settings();
  CheckComparison(model, settings);
  const bool parts = recipe.prune.halves() || (!recipe.gate && EffectsOf(recipe).adapters);
  for (const ExportTarget& target : exports) CheckExport(model, ExportingTo(target, options), parts);
  recipe.text = options.recipe.Text(recipe, model, options.common);
  if (!options.recover_text.empty()) PullMissingTexts(RecoveryNames(options), options.common);
  const RepairJob job(model, recipe, resources);
  HeldOutText heldout = OpenHeldOut({options.comparison.text, options.recipe.calib.empty(), job.Text().tokens > 0},
                                    model, job.HeldOut(), options.common);
  CheckHeldOut(options, recipe, heldout);
  Limit(options.comparison.text_tokens, model, settings.protocol, heldout);
  const auto progress = options.common.MakeProgress();

  PrintJob(options, model, recipe, job, std::ssize(heldout.tokens));
  CommandFit kept(job, recipe, first);
  phases.Done("open");
  const RepairResult repair = kept.Run(*progress);
  phases.Done(Phases::kFit);
  std::vector<ModelVariant> variants = repair.variants;
  Provenance made = *variants.back().model.MadeBy();
  if (!options.recipe.load_gram.empty())
    fmt::print("sums of {}: {}\n\n", fmt::join(options.recipe.load_gram, ", "), made.calibration->source);
  PrintRepair(repair.report, model.Shape().layers);
  PrintProposals(repair.report, recipe);
  std::fflush(stdout);  // the evaluation may take an hour, and --quiet has no progress that would flush

  const bool saves = first && !options.save.empty();
  const auto save = [&] {  // the last variant, with the record as it is
    variants.back().model = variants.back().model.MadeAs(made);
    if (saves) variants.back().model.Save(options.save, options.save_weights);
  };
  made.state = "fitted";  // a run that is killed leaves this, and the same command then completes it
  save();                 // before the evaluation, which may be interrupted
  if (!options.save.empty()) phases.Done("save");
  std::vector<Section> sections;  // the sections of the report
  Json recovery;
  fs::path checkpoint, journal;
  if (!options.recover.empty()) {
    const LanguageModel repaired = variants.back().model;
    const FinetuneSettings settings = RecoveryOf(options, repaired, resources);
    checkpoint = settings.checkpoint;
    const FinetunedModel recovered = Recover(options, repaired, settings, resources);
    variants.push_back({"recovered", variants.back().label + ", recovered", recovered.model});
    made = *recovered.model.MadeBy();
    save();
    recovery = RecoveryJson(recovered, sections);
    phases.Done("recover");
  }

  made.variants = Compare(variants, heldout, settings, resources, progress.get());
  const int64_t window = WindowOf(model, settings.protocol), measured = std::ssize(heldout.tokens);
  if (heldout.Scored()) made.heldout = {heldout.source, measured, settings.protocol, std::min(window, measured)};
  made.repair->seconds.evaluate = phases.Done("evaluate");
  PrintComparison(settings, heldout, window, made.variants);
  std::fflush(stdout);
  const FidelityTable fidelity = FidelityOf(variants, heldout, settings.protocol, resources, *progress);
  fmt::print("{}", fidelity.Text());
  std::fflush(stdout);
  phases.Done("fidelity");
  made.state = "evaluated";
  if (saves && variants.back().model.RecordIn(options.save, made)) {
    fmt::print("saved: {}\n", options.save);
  } else if (saves) {
    fmt::print(stderr, "shiftrt: {}: another program has saved its model there since, and that one stays\n",
               options.save);
  }
  Json json = ResultsJson(made);
  if (!fidelity.empty()) json["fidelity"] = fidelity.ToJson();
  if (!recovery.is_null()) json["recovery"] = recovery;
  if (!suites.empty()) {
    fmt::print("\n");
    const PaperSetting paper =
        PaperSettingOf(model, repair.report.selection.criterion, repair.report.selection.removed);
    EvaluationResult result = RunEvaluation({variants, paper, resources, *progress}, suites, options.evaluation);
    json["evaluation"] = std::move(result.json);
    sections.push_back(std::move(result.section));
    journal = std::move(result.journal);
    phases.Done("suites");
  }
  if (!options.report.empty()) {
    const Page page =
        RunPage({job, repair, heldout, settings, made.variants, fidelity, options.common.seed, resources, *progress},
                std::move(sections));
    if (first) WriteReport(page, options.report);
    phases.Done("report");
  }
  if (first) {
    const LanguageModel result = variants.back().model.MadeAs(made);
    const Resources alone = Alone(resources);
    for (const ExportTarget& target : exports)
      PrintExport(target, Export(result, target.output, ExportingTo(target, options), alone, progress.get()));
  }
  phases.Done("export");
  phases.AddTo(json["seconds"]);
  options.common.WriteJson(json);
  phases.Print(repair.report.seconds);
  RequireStandardOutput();
  kept.Done();
  RemoveJournal(journal);
  std::error_code ignored;
  if (first && !checkpoint.empty()) fs::remove(checkpoint, ignored);
  return 0;
}

}  // namespace

Command AddRun(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<RunOptions>();
  options->common = CommonOptions(processes);
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "calibration samples, random selection and --recover");
  options->common.AddOutputTo(app);
  options->common.AddMemoryTo(app);
  options->common.AddSplitTo(app);
  options->recipe.AddTo(app);
  app.add_flag("--no-gate", options->no_gate,
               "keep the repair even if the loss on held-out calibration text is higher with it; without this, it is\n"
               "then left out as a whole (--recipe paper keeps it)")
      ->excludes(app.get_option("--gate"));
  options->comparison.AddTo(app);
  app.add_option(
      "--recover", options->recover,
      "after the repair, train all kept blocks and the adapters for so long: a time (30min, 2h) or tokens=1M.\n"
      "The best state on held-out text is kept. An interrupted run continues from its last checkpoint; with\n"
      "tokens, to the same bits");
  app.add_option(
         "--recover-loss", options->recover_loss,
         "loss of the training: ce, the cross entropy with the text (the fastest); kl, the divergence from the\n"
         "predictions of the original model, which runs too; both: half of each")
      ->capture_default_str();
  app.add_option("--recover-rate", options->recover_rate,
                 "highest learning rate of the training (default: by hidden size,\n"
                 "docs/training.md#the-learning-rate). If the held-out loss rises at first, a lower one is better")
      ->check(AboveZero());
  app.add_option(
      "--recover-text", options->recover_text,
      "text to learn from: FILE, or c4, wikitext2 or alpaca, or several with commas between them, which are mixed\n"
      "(default: the whole text of --calib). " +
          std::string(kOwnTextHelp));
  AddReport(app, options->report, "write an HTML page with tables and charts to this directory");
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
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --calib c4.jsonl --text wiki.test.raw --text-tokens 16384 "
      "--save out\n"
      "  shiftrt run --model demo --recipe stock --export hf:out-hf\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --quantize q4_k_m --calib c4.jsonl --text-tokens 16384 --save "
      "out\n"
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
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --recover 30min --recover-text own:alpaca,c4 --save out\n"
      "  shiftrt run --model SmolLM2-135M-Instruct --calib c4.jsonl --chat --prompt \"Why is the sky blue?\"\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --calib c4.jsonl --text-tokens 16384 --eval paper7 --data "
      "~/data\n"
      "  shiftrt run --model qwen2-1.5b --prune \"reverse*:7\" --lra full --merge full --calib c4.jsonl --text-tokens "
      "16384 --save out\n"
      "  shiftrt run --model demo --prune bi:0.25 --correction replaceme --export hf:out-hf\n"
      "  shiftrt run --config Llama-3-70B/config.json --dry-run --prune bi:0.25 --lra 64 --split 4\n"
      "  mpirun -n 4 shiftrt run --model demo --prune bi:0.25 --lra 64    (docs/scale.md)\n"
      "  mpirun -n 4 shiftrt run --model Llama-2-70b-hf --prune bi:0.25 --calib c4.jsonl --text-tokens 16384 "
      "--split 4 --save out");
  return [options, &app] {
    ChooseRecipe(*options, app);
    options->recipe.TakeNamed(app, options->common.split != 1);
    for (const char* option : {"--recover-text", "--recover-loss", "--recover-rate"})
      if (options->recover.empty() && app.count(option) > 0)
        FailUsage("{} {}: it goes with --recover BUDGET or --recipe recover", option, app[option]->as<std::string>());
    return Run(*options);
  };
}

}  // namespace shiftrt
