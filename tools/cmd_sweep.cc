// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>

#include "shiftrt/sweep.h"
#include "tools/evaluation.h"
#include "tools/options.h"
#include "tools/paper/paper.h"
#include "tools/recipe.h"
#include "tools/report_output.h"
#include "tools/selection.h"
#include "tools/standard_output.h"
#include "tools/sweep_output.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

constexpr const char* kAmount = "0.25";  // the amount for a criterion that is given alone

struct SweepOptions {
  CommonOptions common;
  EvaluationOptions evaluation{""};
  std::string preset, prune = "streamline:0.25", calib, text, protocol = "gptq", csv, markdown, report, journal;
  std::vector<std::string> correction = {"lra"}, calibration_mode = {"independent"}, token_weight = {"none"};
  std::vector<std::string> recipes;
  std::vector<std::string> heal = {"off"}, lra = {"64"}, lambda = {"gcv"}, factorize = {"rrr"};
  std::vector<int64_t> samples;
  std::vector<uint64_t> seeds;
  int64_t text_tokens = 0;
  bool penalize_bias = false;
  bool yes = false;              // see CheckRemoval (tools/selection.h)
  bool ranks_of_preset = false;  // lra has those of the preset
};

// Gives the options that the command line leaves out the values of the preset.
void TakePreset(const CLI::App& app, SweepOptions& options) {
  const Preset& preset = FindPreset(options.preset);
  const auto take = [&](const char* option, auto& value, const auto& from) {
    if (app.count(option) == 0) value.assign(from.begin(), from.end());
  };
  if (app.count("--prune") == 0) options.prune = preset.prune;
  take("--correction", options.correction, preset.corrections);
  take("--calibration-mode", options.calibration_mode, preset.modes);
  take("--lra", options.lra, preset.ranks);
  options.ranks_of_preset = app.count("--lra") == 0;
  take("--samples", options.samples, preset.samples);
  take("--seeds", options.seeds, preset.seeds);
  take("--factorize", options.factorize, std::vector<std::string>{"svd"});
}

// An axis from what was given for it.
template <typename T>
std::vector<T> ParseAll(const std::vector<std::string>& texts, T (*parse)(const std::string&)) {
  std::vector<T> values;
  values.reserve(texts.size());
  for (const std::string& text : texts) values.push_back(parse(text));
  return values;
}

SweepAxes MakeAxes(const SweepOptions& options, const CalibrationSpec& calibration, int64_t hidden) {
  SweepAxes axes;
  axes.prunes = ParsePruneList(options.prune, kAmount);
  axes.corrections = options.correction;
  axes.modes = ParseAll(options.calibration_mode, ParseCalibrationMode);
  axes.weightings = ParseAll(options.token_weight, ParseTokenWeights);
  axes.lambdas = ParseAll(options.lambda, ParseLambda);
  axes.factorizations = ParseAll(options.factorize, ParseFactorization);
  axes.heals = ParseAll(options.heal, ParseHeal);
  axes.ranks.clear();
  for (const std::string& text : options.lra) {
    axes.ranks.push_back(ParseRank(text));
    // A preset made for larger models runs on this one without the ranks it has not got.
    if (options.ranks_of_preset && axes.ranks.back().kind == RankSpec::Kind::kFixed && axes.ranks.back().rank > hidden)
      axes.ranks.pop_back();
  }
  if (axes.ranks.empty())
    FailUsage("--preset {}: all of its ranks ({}) exceed the hidden size {} of the model; name others with --lra",
              options.preset, fmt::join(options.lra, ", "), hidden);
  axes.samples = options.samples.empty() ? std::vector<int64_t>{calibration.samples} : options.samples;
  axes.seeds = options.seeds.empty() ? std::vector<uint64_t>{options.common.seed} : options.seeds;
  axes.penalize_bias = options.penalize_bias;
  return axes;
}

void Print(const std::vector<SweepRow>& rows, const PaperTable& paper) {
  fmt::print("{}", Table(SweepTable(rows, paper)).Text());
  if (!paper.model.empty())
    fmt::print(
        "paper: its numbers for {} where it has them: WikiText-2 perplexity, mean zero-shot accuracy in percent\n",
        paper.model);
}

std::string AccuracySummary(const SweepResult& result) {
  if (result.averaged.empty()) return "";
  const Quality& original = result.rows.front().original;
  std::string error = PlusMinus(100 * original.accuracy_error, 2);
  if (!error.empty()) error += " (standard error)";
  return fmt::format("; mean accuracy over {}: original {:.2f}{}", fmt::join(result.averaged, ", "),
                     100 * original.accuracy, error);
}

// Those of every name given, one after another. The options are the command line's again when this returns.
std::vector<Recipe> NamedCombinations(CLI::App& app, SweepOptions& options, const CalibrationSpec& calibration,
                                      int64_t hidden) {
  std::vector<Recipe> recipes;
  const SweepOptions given = options;
  for (const std::string& name : given.recipes) {
    const std::vector<CLI::Option*> taken = TakeRecipe(app, name);
    const std::vector<Recipe> more = Combinations(MakeAxes(options, calibration, hidden));
    recipes.insert(recipes.end(), more.begin(), more.end());
    for (CLI::Option* option : taken) option->clear();
    options = given;
  }
  return recipes;
}

int Run(CLI::App& app, SweepOptions& options) {
  const Resources resources = options.common.MakeResources();
  const bool first = options.common.processes->first();  // the one that writes
  RefuseMissingTextsBeforePull(options.common, {options.text});
  const LanguageModel model = options.common.OpenLanguageModel();
  if (model.MadeBy() != nullptr)
    FailUsage("{} is already pruned or fine-tuned; give the model it was made from", options.common.model);
  for (const PruneSpec& prune : ParsePruneList(options.prune, kAmount)) CheckRemoval(model, prune, options.yes);
  RefuseMissingTexts({options.text});
  SweepSettings settings = {
      .protocol = options.protocol, .suites = options.evaluation.Load(options.common), .journal = options.journal};
  const int64_t hidden = model.Shape().hidden;
  settings.calibration = CalibrationFor(options.calib, model, options.common);
  SweepAxes axes = MakeAxes(options, settings.calibration, hidden);
  axes.recipes = NamedCombinations(app, options, settings.calibration, hidden);
  HeldOutText& heldout = settings.heldout;
  heldout = OpenHeldOut({options.text, /*wikitext=*/true}, model, {}, options.common);
  const int64_t window = WindowOf(model, options.protocol);
  Limit(options.text_tokens, model, options.protocol, heldout);
  const auto progress = options.common.MakeProgress();
  settings.progress = progress.get();
  settings.tell = Tell;
  std::vector<SweepRow> found;
  settings.done = [&](const SweepRow& row) {
    found.push_back(row);
    if (first && !options.csv.empty()) WriteFileText(options.csv, SweepCsv(found));  // for the case of an interruption
  };
  const SweepResult result = Sweep(model, axes, settings, resources);
  const std::vector<SweepRow>& rows = result.rows;

  PaperTable paper;
  if (!options.preset.empty()) paper = {PaperModel(model.Name()), options.preset};
  const std::string summary =
      fmt::format("{}: calibration {}; {} perplexity on {} tokens of {}; original {:.2f}{}", model.Name(),
                  result.calibration, options.protocol, heldout.tokens.size() / window * window, heldout.Description(),
                  rows.front().original.perplexity, AccuracySummary(result));
  fmt::print("{}{}{}\n", options.preset, options.preset.empty() ? "" : ", ", summary);
  Print(rows, paper);
  options.common.WriteJson({{"model", model.Name()},
                            {"preset", options.preset},
                            {"calibration", result.calibration},
                            {"protocol", options.protocol},
                            {"text", heldout.source},
                            {"rows", SweepJson(rows)}});
  if (!first) return 0;
  if (!options.markdown.empty()) WriteFileText(options.markdown, summary + "\n\n" + SweepMarkdown(rows, paper));
  if (!options.report.empty()) {
    const std::string title = options.preset.empty() ? "shiftrt sweep" : "shiftrt sweep: " + options.preset;
    WriteReport(SweepPage(title, summary, rows, paper, hidden), options.report);
  }
  RequireStandardOutput();
  std::error_code ignored;
  if (!options.journal.empty()) std::filesystem::remove(options.journal, ignored);
  return 0;
}

}  // namespace

Command AddSweep(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<SweepOptions>();
  options->common = CommonOptions(processes);
  CommonOptions::RefuseSplitIn(app, "start `run --split` once per setting");
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "calibration samples and random selection, where --seeds is not given");
  options->common.AddOutputTo(app);
  options->common.AddMemoryTo(app);
  app.add_option("--preset", options->preset,
                 "experiment of the paper (listed below); other options override its settings");
  auto* preset = app.get_option("--preset");
  app.add_option("--recipe", options->recipes, "recipes, as in run; comma-separated list, such as paper,stock,best")
      ->delimiter(',')
      ->excludes(preset);
  app.add_option("--prune", options->prune, "criteria with amounts, as in run; comma-separated list")
      ->capture_default_str();
  AddYes(app, options->yes);
  app.add_option("--correction", options->correction,
                 "corrections, as in run; comma-separated list, such as lra,replaceme")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option(
         "--calibration-mode", options->calibration_mode,
         "calibration modes, as in run; comma-separated list. The default is not that of run, because independent\n"
         "fits of all settings share one pass")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--token-weight", options->token_weight,
                 "token weights, as in run; separated by \";\": 'none;norm,first:0'")
      ->delimiter(';')
      ->capture_default_str();
  app.add_option("--heal", options->heal, "what is healed, as in run; comma-separated list, such as off,all")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--lra", options->lra, "ranks, as in run; comma-separated list, such as 16,64,full")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--lambda", options->lambda,
                 "ridge penalties, as in run; comma-separated list, such as gcv,1e-2,1e-4rel")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--factorize", options->factorize, "factorizations, as in run; comma-separated list")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--samples", options->samples, "calibration sizes in samples; comma-separated list, such as 32,64,128")
      ->delimiter(',')
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seeds", options->seeds, "seeds of calibration samples and random selection; comma-separated list")
      ->delimiter(',');
  app.add_flag("--penalize-bias", options->penalize_bias, "penalise the bias too, as in the paper's main text");
  app.add_option("--calib", options->calib,
                 "calibration text: NAME or FILE, with [:samples[xtokens]] (the demo model has its own)");
  app.add_option("--text", options->text, "held-out text for the perplexity (the demo model has its own)");
  AddTextTokens(app, options->text_tokens);
  app.add_option("--protocol", options->protocol, "perplexity protocol: gptq or seq128")->capture_default_str();
  options->evaluation.AddTasksTo(app, "--eval");
  app.add_option("--journal", options->journal,
                 "keep finished cells in this file; an interrupted sweep continues from it, and removes it at the end")
      ->check(FileOutput())
      ->check(JournalOutput());
  app.add_option("--csv", options->csv, "write one line per setting and seed to this file, as they are found")
      ->check(FileOutput());
  app.add_option("--markdown", options->markdown, "write the table to this file in Markdown")->check(FileOutput());
  AddReport(app, options->report, "write an HTML page with table and charts to this directory");
  std::string presets;
  for (const Preset& preset : Presets()) presets += fmt::format("\n  {:<24}{}", preset.name, preset.summary);
  app.footer("Presets:" + presets +
             "\n\nExamples:\n  shiftrt sweep --model demo --prune \"bi:0.25,reverse*:0.25\" --lra 8,32,full "
             "--factorize rrr,svd\n"
             "  shiftrt sweep --model demo --prune bi:0.25,bi:0.25,unit=half --correction none,lra,refit\n"
             "  shiftrt sweep --model demo --preset paper-table1 --text-tokens 16384 --report table1\n"
             "  shiftrt sweep --model demo --prune \"bi:0.25,reverse*:0.25\" --recipe paper,stock,adapters,best\n"
             "  shiftrt sweep --model qwen2-1.5b --preset paper-table1 --calib c4.jsonl --text wiki.test.raw "
             "--text-tokens 16384 --eval paper7 --data ~/data\n"
             "  mpirun -n 8 shiftrt sweep --model qwen2-1.5b --preset paper-table1 --calib c4.jsonl --text-tokens "
             "16384    (docs/scale.md)");
  return [options, &app] {
    if (!options->preset.empty()) TakePreset(app, *options);
    return Run(app, *options);
  };
}

}  // namespace shiftrt
