// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "api/impl.h"
#include "api/suites.h"
#include "eval/perplexity.h"
#include "eval/summary.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "shift/sweep.h"
#include "tools/evaluation.h"
#include "tools/named_recipes.h"
#include "tools/options.h"
#include "tools/paper/paper.h"
#include "tools/sweep_journal.h"
#include "tools/sweep_output.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct SweepOptions {
  CommonOptions common;
  EvaluationOptions evaluation{.tasks = ""};
  std::string preset, prune = "bi:0.25", calib, text, protocol = "gptq", csv, markdown, report, journal;
  std::vector<std::string> correction = {"lra"}, calibration_mode = {"independent"}, token_weight = {"none"};
  std::vector<std::string> recipes;
  std::vector<std::string> heal = {"off"}, lra = {"64"}, lambda = {"gcv"}, factorize = {"rrr"};
  std::vector<int64_t> samples;
  std::vector<uint64_t> seeds;
  int64_t text_tokens = 0;
  bool penalize_bias = false;
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
  axes.prunes = ParsePruneList(options.prune, "0.25");
  axes.corrections.clear();
  for (const std::string& name : options.correction) axes.corrections.push_back(&FindCorrection(name));
  axes.modes = ParseAll(options.calibration_mode, ParseCalibrationMode);
  axes.weightings = ParseAll(options.token_weight, ParseTokenWeighting);
  axes.lambdas = ParseAll(options.lambda, ParseLambda);
  axes.factorizations = ParseAll(options.factorize, ParseFactorization);
  axes.heals = ParseAll(options.heal, ParseHeal);
  axes.ranks.clear();
  for (const std::string& text : options.lra) {
    axes.ranks.push_back(ParseRank(text));
    // A preset made for larger models runs on this one without the ranks it has not got.
    if (!options.preset.empty() && axes.ranks.back().kind == RankSpec::Kind::kFixed && axes.ranks.back().rank > hidden)
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
  const std::vector<std::vector<std::string>> lines = SweepTable(rows, paper);
  Table table(lines.front());
  for (size_t i = 1; i < lines.size(); ++i) table.Add(lines[i]);
  fmt::print("{}", table.Text());
  if (!paper.model.empty())
    fmt::print(
        "paper: its numbers for {} where it has them: WikiText-2 perplexity, mean zero-shot accuracy in percent\n",
        paper.model);
}

// Loads the suites. Throws UsageError for a suite without right answers, which has no accuracy.
std::vector<Dataset> LoadSuites(const EvaluationOptions& evaluation, const CommonOptions& common) {
  if (evaluation.tasks.empty()) return {};
  std::vector<Dataset> suites = evaluation.Load(common).impl().datasets;
  std::erase_if(suites, [](const Dataset& suite) { return suite.task->kind == TaskKind::kPages; });
  if (suites.empty()) FailUsage("--eval {}: accuracy is of suites whose right answers are counted", evaluation.tasks);
  return suites;
}

std::string AccuracySummary(const Quality& original, const std::vector<Dataset>& suites) {
  if (suites.empty()) return "";
  std::vector<std::string> names;
  names.reserve(suites.size());
  for (const Dataset& suite : suites)
    names.push_back(fmt::format("{} ({} items)", suite.task->title, suite.items.size()));
  return fmt::format("; mean accuracy over {}: original {:.2f} ± {:.2f} (standard error)", fmt::join(names, ", "),
                     100 * original.accuracy, 100 * original.accuracy_error);
}

// Everything that decides a cell beside its settings.
std::string JournalKey(const SweepOptions& options, const CalibrationSpec& calibration, const Model& model,
                       const HeldOutText& heldout) {
  std::string text;
  for (const int32_t token : heldout.tokens) text += fmt::format("{} ", token);
  if (std::error_code none; std::filesystem::exists(calibration.source, none))
    text += fmt::format("{}", std::filesystem::last_write_time(calibration.source).time_since_epoch().count());
  const EvaluationOptions& evaluation = options.evaluation;
  std::string key = fmt::format("{} {} {} {} {} {}x{} {} {}", SHIFTRT_VERSION, model.weights->Fingerprint(),
                                Name(model.weights->embedding.dtype), options.common.device, calibration.source,
                                calibration.samples, calibration.tokens, options.protocol, HashHex(text));
  if (ParseProducts(options.common.products) == Products::kBFloat16) key += " bfloat16";
  if (!evaluation.tasks.empty()) key += fmt::format(" {} {} {}", evaluation.tasks, evaluation.limit, evaluation.shots);
  return key;
}

// Those of every recipe, one after another. Its options are the command line's again when this returns.
std::vector<ShiftOptions> SettingsOf(CLI::App& app, SweepOptions& options, const CalibrationSpec& calibration,
                                     int64_t hidden) {
  std::vector<ShiftOptions> settings;
  const SweepOptions given = options;
  for (const std::string& name : given.recipes) {
    const std::vector<CLI::Option*> taken = TakeRecipe(app, name);
    const std::vector<ShiftOptions> more = Combinations(MakeAxes(options, calibration, hidden));
    settings.insert(settings.end(), more.begin(), more.end());
    for (CLI::Option* option : taken) option->clear();
    options = given;
  }
  return settings;
}

int Run(CLI::App& app, SweepOptions& options) {
  RefuseMissingTexts({options.text});
  std::vector<Dataset> suites = LoadSuites(options.evaluation, options.common);
  const Context context = options.common.MakeContext();
  const bool first = context.processes->first();  // the one that writes
  const LanguageModel opened = options.common.OpenLanguageModel();
  const Model& model = opened.impl().model;
  if (model.provenance) FailUsage("{} is already pruned; give the model it was made from", options.common.model);
  const ModelConfig& config = model.weights->config;
  const CalibrationSpec calibration = CalibrationFor(options.calib, opened, options.common);
  SweepAxes axes = MakeAxes(options, calibration, config.hidden);
  axes.settings = SettingsOf(app, options, calibration, config.hidden);
  HeldOutText heldout = OpenHeldOut({options.text, /*wikitext=*/true}, opened, {}, options.common);
  const int64_t window = ProtocolWindow(options.protocol, config);
  Limit(options.text_tokens, opened, options.protocol, heldout);
  const auto progress = options.common.MakeProgress();

  std::vector<SweepRow> rows;
  std::string calibration_source;
  std::vector<const Task*> given;
  given.reserve(suites.size());
  for (const Dataset& suite : suites) given.push_back(suite.task);
  const std::vector<const Task*> averaged = AveragedTasks(given, model.plan.Parameters(*model.weights));
  std::erase_if(suites, [&](const Dataset& suite) {
    return std::find(averaged.begin(), averaged.end(), suite.task) == averaged.end();
  });
  // Over the suites, of which there is one at least.
  const auto mean_accuracy = [&](const DepthPlan& plan) {
    const std::vector<Variant> variants = {{"", plan}};
    Journal none("");
    const EvalJob job = {context, model,    variants, EvalOptions{.bos = ParseBos(options.evaluation.bos)},
                         none,    *progress};
    std::vector<TaskSummary> tasks;
    tasks.reserve(suites.size());
    for (const Dataset& suite : suites) tasks.push_back(Summarize(suite, Evaluate(job, suite), /*all=*/false));
    return Means(tasks, averaged).front().mean;
  };
  SweepSource source;
  source.open = [&](uint64_t seed, int64_t samples) {
    CalibrationSpec spec = calibration;
    spec.samples = samples;
    CalibrationSet set = LoadCalibration(spec, model.RequireTokenizer(), seed, /*batch_tokens=*/spec.tokens);
    context.processes->CheckSame("calibration text (hash)", set.hash);
    calibration_source = set.source;
    return set;
  };
  source.measure = [&](const DepthPlan& plan) {
    Decoder decoder(context, model.weights, plan);
    Quality quality{WindowedPerplexity(decoder, heldout.tokens, window, options.protocol, *progress).perplexity};
    if (suites.empty()) return quality;
    const Estimate accuracy = mean_accuracy(plan);
    quality.accuracy = accuracy.value;
    quality.accuracy_error = accuracy.error;
    return quality;
  };
  SweepJournal journal(options.journal, JournalKey(options, calibration, model, heldout));
  context.processes->CheckSame("journal, which is to be in a directory of all hosts: cells",
                               fmt::format("{}", journal.cells()));
  if (first)
    for (const std::string& bad : journal.bad())
      std::fprintf(stderr, "shiftrt: %s; its cell is computed again\n", bad.c_str());
  if (first && journal.cells() > 0)
    std::fprintf(
        stderr, "shiftrt: %s\n",
        fmt::format("{} cells come from {}, where an interrupted sweep left them", journal.cells(), options.journal)
            .c_str());
  source.known = [&](const ShiftOptions& cell, int64_t samples) { return journal.Find(cell, samples); };
  source.row = [&](const SweepRow& row) {
    if (first && journal.Find(row.options, row.samples) == nullptr) journal.Add(row);
    rows.push_back(row);
    if (first && !options.csv.empty())
      WriteFile(options.csv, SweepCsv(rows));  // an interrupted sweep leaves what it found
  };
  Sweep({context, model, *progress}, axes, source);

  PaperTable paper;
  if (!options.preset.empty()) paper = {PaperModel(model.name), options.preset};
  const std::string summary =
      fmt::format("{}: calibration {}; {} perplexity on {} tokens of {}; original {:.2f}{}", model.name,
                  calibration_source, options.protocol, heldout.tokens.size() / window * window, heldout.Description(),
                  rows.front().original.perplexity, AccuracySummary(rows.front().original, suites));
  fmt::print("{}{}{}\n", options.preset, options.preset.empty() ? "" : ", ", summary);
  Print(rows, paper);
  options.common.WriteJson({{"model", model.name},
                            {"preset", options.preset},
                            {"calibration", calibration_source},
                            {"protocol", options.protocol},
                            {"text", heldout.source},
                            {"rows", SweepJson(rows)}});
  if (!first) return 0;
  if (!options.markdown.empty()) WriteFile(options.markdown, summary + "\n\n" + SweepMarkdown(rows, paper));
  if (!options.report.empty()) {
    const std::string title = options.preset.empty() ? "shiftrt sweep" : "shiftrt sweep: " + options.preset;
    WritePage(SweepPage(title, summary, rows, paper, config.hidden), options.report);
    fmt::print("report: {}/index.html\n", options.report);
  }
  journal.Remove();
  return 0;
}

}  // namespace

Command AddSweep(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<SweepOptions>();
  options->common = CommonOptions(processes);
  CommonOptions::RefuseSplitIn(app, "start `run --split` once per setting");
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "calibration samples and random selection, where --seeds is not given");
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  options->common.AddMemoryTo(app);
  app.add_option("--preset", options->preset,
                 "experiment of the paper (listed below); other options override its settings");
  auto* preset = app.get_option("--preset");
  app.add_option("--recipe", options->recipes, "recipes, as in run; comma-separated list, such as paper,stock,best")
      ->delimiter(',')
      ->excludes(preset);
  app.add_option("--prune", options->prune, "criteria with amounts, as in run; comma-separated list")
      ->capture_default_str();
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
      ->check(FileOutput());
  app.add_option("--csv", options->csv, "write one line per setting and seed to this file, as they are found")
      ->check(FileOutput());
  app.add_option("--markdown", options->markdown, "write the table to this file in Markdown")->check(FileOutput());
  app.add_option("--report", options->report, "write an HTML page with table and charts to this directory")
      ->check(DirectoryOutput());
  std::string presets;
  for (const Preset& preset : Presets()) presets += fmt::format("\n  {:<24}{}", preset.name, preset.summary);
  app.footer(
      "Presets:" + presets +
      "\n\nExamples:\n  shiftrt sweep --model demo --prune \"bi:0.25,reverse*:0.25\" --lra 8,32,full "
      "--factorize rrr,svd\n"
      "  shiftrt sweep --model demo --prune bi:0.25,bi:0.25,unit=half --correction none,lra,refit\n"
      "  shiftrt sweep --model demo --preset paper-table1 --text-tokens 16384 --report table1\n"
      "  shiftrt sweep --model demo --prune \"bi:0.25,reverse*:0.25\" --recipe paper,stock,adapters,best\n"
      "  shiftrt sweep --model qwen2-1.5b --preset paper-table1 --calib c4.jsonl --text wiki.test.raw "
      "--eval paper7 --data ~/data\n"
      "  mpirun -n 8 shiftrt sweep --model qwen2-1.5b --preset paper-table1 --calib c4.jsonl    (docs/scale.md)");
  return [options, &app] {
    if (!options->preset.empty()) TakePreset(app, *options);
    return Run(app, *options);
  };
}

}  // namespace shiftrt
