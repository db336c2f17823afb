#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/median.h"
#include "shift/pipeline.h"
#include "tools/evaluation.h"
#include "tools/options.h"
#include "tools/recipe.h"
#include "tools/run_report.h"
#include "tools/selection.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int kSpeedRounds = 5;
constexpr int64_t kSpeedTokens = 24;

struct RunOptions {
  CommonOptions common;
  RecipeOptions recipe;
  EvaluationOptions evaluation{.tasks = ""};
  std::string text, protocol = "gptq", prompt = "It is a truth universally acknowledged, that", save, report;
  int64_t max_tokens = 40, text_tokens = 0;
  bool save_weights = false;
};

struct Variant {
  Variant(std::string name, DepthPlan plan) : name(std::move(name)), plan(std::move(plan)) {}

  std::string name;
  DepthPlan plan;
  int64_t parameters = 0, bytes = 0;
  double perplexity = 0, tokens_per_second = 0;
  std::string continuation;
};

// What every step of a run looks at.
struct Job {
  const RunOptions& options;
  const Context& context;
  const Model& model;
  const CalibrationSet& calibration;
  const HeldOutText& heldout;
  Progress& progress;
};

// Perplexity and a continuation of each variant; then decoding speed in turn, so that the machine's drift meets all
// alike.
void Compare(const Job& job, std::vector<Variant>& variants) {
  const RunOptions& options = job.options;
  const Model& model = job.model;
  const ModelConfig& config = model.weights->config;
  const std::vector<int32_t> prompt = model.RequireTokenizer().EncodeWithBos(options.prompt);
  const int64_t window = ProtocolWindow(options.protocol, config);
  std::vector<Decoder> decoders;
  for (Variant& variant : variants) {
    Decoder& decoder = decoders.emplace_back(job.context, model.weights, variant.plan);
    variant.parameters = decoder.Parameters();
    variant.bytes = decoder.BytesPerToken();
    variant.perplexity =
        WindowedPerplexity(decoder, job.heldout.tokens, window, options.protocol, job.progress).perplexity;
    job.progress.Begin("continuing the prompt", options.max_tokens);
    auto reply =
        Generate(decoder, prompt, options.max_tokens, {}, options.common.seed, config.eos_tokens, [&](int32_t) {
          job.progress.Advance(1);
          return true;
        });
    job.progress.End();
    // A vocabulary padded beyond the tokenizer's has ids that stand for no text.
    std::erase_if(reply.tokens, [&](int32_t token) { return token >= model.RequireTokenizer().vocab_size(); });
    variant.continuation = DecodeReply(model.RequireTokenizer(), prompt, reply.tokens);
  }
  const int64_t room = config.max_positions - static_cast<int64_t>(prompt.size());
  const int64_t tokens = std::min(kSpeedTokens, room);
  std::vector<std::vector<double>> speed(variants.size());
  job.progress.Begin("timing", kSpeedRounds * static_cast<int64_t>(variants.size()));
  for (int round = 0; round < kSpeedRounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto reply = Generate(decoders[v], prompt, tokens, {}, options.common.seed, {});
      speed[v].push_back(static_cast<double>(reply.tokens.size() - 1) / reply.decode_seconds);
      job.progress.Advance(1);
    }
  }
  job.progress.End();
  for (size_t v = 0; v < variants.size(); ++v) variants[v].tokens_per_second = Median(speed[v]);
}

void PrintSelection(const Selection& selection, int64_t layers) {
  fmt::print("layers removed by {}: {}\n", selection.criterion, fmt::join(selection.removed, ", "));
  if (selection.scores.empty()) return;
  if (selection.window > 1) fmt::print("scores of {} consecutive layers, by the first\n", selection.window);
  Table table({"layer", "score", ""});
  for (int64_t l = 0; l < layers; ++l) {
    const bool gone = std::binary_search(selection.removed.begin(), selection.removed.end(), l);
    table.Add({std::to_string(l), ScoreText(selection, l), gone ? "removed" : ""});
  }
  fmt::print("{}\n", table.Text());
}

void PrintSites(const std::vector<SiteReport>& sites) {
  if (sites.empty()) return;
  Table table({"adapter at layer", "lambda", "condition", "rank", "effective", "R2 fitted", "R2 held out"});
  for (const SiteReport& site : sites)
    table.Add({site.site.Name(), fmt::format("{:.3g}", site.lambda), fmt::format("{:.1e}", site.condition),
               std::to_string(site.rank), fmt::format("{:.1f}", site.effective_rank),
               fmt::format("{:.3f}", site.r2_fit),
               std::isnan(site.r2_heldout) ? "-" : fmt::format("{:.3f}", site.r2_heldout)});
  fmt::print("{}", table.Text());
  for (const SiteReport& site : sites)
    if (!site.warning.empty()) fmt::print("  layer {}: {}\n", site.site.Name(), site.warning);
  fmt::print("\n");
}

void PrintMergedRuns(const std::vector<SiteReport>& runs) {
  if (runs.empty()) return;
  Table table({"merged run", "rank", "R2 fitted", "R2 held out"});
  for (const SiteReport& run : runs)
    table.Add({run.site.Name(), std::to_string(run.rank), fmt::format("{:.3f}", run.r2_fit),
               fmt::format("{:.3f}", run.r2_heldout)});
  fmt::print("{}\n", table.Text());
}

void PrintTrials(const ShiftResult& result) {
  if (result.trials.empty()) return;
  Table table({"recipe tried", "tokens fitted", "held-out loss", "gain over the first", ""});
  for (const Trial& trial : result.trials) {
    const std::string recipe = Format(trial.recipe);
    table.Add({recipe, std::to_string(trial.tokens), fmt::format("{:.4f}", trial.loss),
               &trial == &result.trials.front() ? "" : fmt::format("{:+.4f} ± {:.4f}", trial.gain, trial.error),
               &trial == &result.trials[result.chosen_trial] ? "chosen" : ""});
  }
  fmt::print("{}\n", table.Text());
}

void PrintGate(const std::vector<GateVerdict>& verdicts) {
  if (verdicts.empty()) return;
  Table table({"gate at layer", "loss with", "loss without", ""});
  for (const GateVerdict& v : verdicts)
    table.Add({fmt::format("{}", fmt::join(v.layers, ",")), fmt::format("{:.4f}", v.with),
               fmt::format("{:.4f}", v.without), v.kept ? "kept" : "dropped"});
  fmt::print("{}\n", table.Text());
}

PageTable Comparison(const std::vector<Variant>& variants) {
  PageTable table{{"model", "parameters", "bytes a token", "perplexity", "tokens/s"}, {}};
  for (const Variant& v : variants)
    table.rows.push_back({v.name, Scaled(static_cast<double>(v.parameters), ""),
                          Scaled(static_cast<double>(v.bytes), "B"), fmt::format("{:.2f}", v.perplexity),
                          fmt::format("{:.1f}", v.tokens_per_second)});
  return table;
}

void PrintVariants(const RunOptions& options, const std::vector<Variant>& variants, const std::string& heldout) {
  fmt::print("held-out perplexity ({}) on {}\n", options.protocol, heldout);
  const PageTable comparison = Comparison(variants);
  Table table(comparison.header);
  for (const std::vector<std::string>& row : comparison.rows) table.Add(row);
  fmt::print("{}\n\"{}\" ...\n", table.Text(), options.prompt);
  for (const Variant& v : variants) {
    std::string line = v.continuation;
    std::replace(line.begin(), line.end(), '\n', ' ');
    fmt::print("  {}: {}\n", v.name, line);
  }
}

Json SelectionJson(const Selection& selection) {
  return {{"criterion", selection.criterion},
          {"scores", selection.scores},
          {"removed", selection.removed},
          {"window", selection.window}};
}

Json SitesJson(const std::vector<SiteReport>& sites) {
  Json out = Json::array();
  for (const SiteReport& site : sites)
    out.push_back({{"layers", site.site.Layers()},
                   {"lambda", site.lambda},
                   {"tokens", site.tokens},
                   {"rank", site.rank},
                   {"effective_rank", site.effective_rank},
                   {"r2_fit", site.r2_fit},
                   {"r2_heldout", site.r2_heldout},
                   {"condition", site.condition},
                   {"singular_values", site.singular_values},
                   {"warning", site.warning}});
  return out;
}

Json TrialsJson(const ShiftResult& result) {
  Json out = Json::array();
  for (const Trial& trial : result.trials)
    out.push_back({{"calibration", Name(trial.recipe.mode)},
                   {"token_weight", Format(trial.recipe.weighting)},
                   {"factorization", Name(trial.recipe.factorization)},
                   {"lambda", Format(trial.recipe.lambda)},
                   {"tokens", trial.tokens},
                   {"loss", trial.loss},
                   {"gain", trial.gain},
                   {"gain_error", trial.error},
                   {"chosen", &trial == &result.trials[result.chosen_trial]}});
  return out;
}

Json GateJson(const std::vector<GateVerdict>& verdicts) {
  Json out = Json::array();
  for (const GateVerdict& v : verdicts)
    out.push_back({{"layers", v.layers}, {"with", v.with}, {"without", v.without}, {"kept", v.kept}});
  return out;
}

Json ResultJson(const Model& model, const CalibrationSet& calibration, const ShiftResult& result,
                const std::vector<Variant>& variants, double evaluate_seconds) {
  Json json = {{"model", model.name},
               {"selection", SelectionJson(result.selection)},
               {"calibration",
                {{"source", result.calibration},
                 {"hash", calibration.hash},
                 {"tokens", result.sites.empty() ? calibration.fit_tokens : result.sites.front().tokens},
                 {"heldout_tokens", calibration.heldout_tokens}}},
               {"sites", SitesJson(result.sites)},
               {"merged_runs", SitesJson(result.merged_runs)},
               {"trials", TrialsJson(result)},
               {"gate", GateJson(result.gate)},
               {"variants", Json::array()},
               {"seconds",
                {{"select", result.seconds.select},
                 {"calibrate", result.seconds.calibrate},
                 {"solve", result.seconds.solve},
                 {"factorize", result.seconds.factorize},
                 {"evaluate", evaluate_seconds}}}};
  for (const Variant& v : variants)
    json["variants"].push_back({{"name", v.name},
                                {"parameters", v.parameters},
                                {"bytes", v.bytes},
                                {"perplexity", v.perplexity},
                                {"tokens_per_second", v.tokens_per_second},
                                {"continuation", v.continuation}});
  return json;
}

// The run's own criterion, and others that need no more than a pass over the calibration text, at the same amount.
std::vector<Selection> ScoresBeside(const Selection& own, const CriterionInput& input, Progress& progress) {
  std::vector<PruneSpec> specs;
  for (const char* name : {"bi", "angular", "magnitude-l1", "magnitude-l2"}) {
    const bool lacks_text = FindCriterion(name).needs_calibration && input.calibration->empty();
    if (name != own.criterion && !lacks_text)
      specs.push_back(ParsePrune(fmt::format("{}:{}", name, own.removed.size())));
  }
  std::vector<Selection> selections = SelectLayers(specs, input, progress);
  selections.insert(selections.begin(), own);
  return selections;
}

void WriteReport(const Job& job, const ShiftResult& result, const std::vector<Variant>& variants) {
  const Model& model = job.model;
  RunReport report;
  report.title = fmt::format("{}: {} of {} layers removed by {}", model.name, result.selection.removed.size(),
                             model.weights->config.layers, result.selection.criterion);
  report.summary = fmt::format("Layers {}. Calibrated on {}{}; perplexity ({}) on {}.",
                               fmt::join(result.selection.removed, ", "), result.calibration,
                               job.calibration.source.empty() ? "" : fmt::format(" ({})", job.calibration.Accounting()),
                               job.options.protocol, job.heldout.Description());
  const CriterionInput input = {job.context, model.weights, &job.calibration.fit, job.options.common.seed};
  report.scores = ScoresBeside(result.selection, input, job.progress);
  report.sites = result.sites;
  report.comparison = Comparison(variants);
  report.drift = MeasureDrift(job.context, model.weights, {model.plan, result.pruned, result.corrected},
                              DriftBatches(job.heldout.tokens, model.weights->config.max_positions), job.progress);
  report.prompt = job.options.prompt;
  for (const Variant& v : variants) report.continuations.emplace_back(v.name, v.continuation);
  WritePage(RunPage(report), job.options.report);
  fmt::print("report: {}/index.html\n", job.options.report);
}

int Run(const RunOptions& options) {
  const ShiftOptions shift = options.recipe.Parse(options.common.seed);
  if (options.save_weights && options.save.empty()) FailUsage("--save-weights goes with --save DIR");

  const std::vector<Dataset> datasets =
      options.evaluation.tasks.empty() ? std::vector<Dataset>() : options.evaluation.Load();
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  if (!model.provenance.empty())
    FailUsage("{} is already pruned; give the model it was made from", options.common.model);
  const ModelConfig& config = model.weights->config;
  CheckRank(shift.fit.rank, config.hidden);
  // Said now, not after the hour that calibration may take.
  CheckFits(static_cast<int64_t>(model.RequireTokenizer().EncodeWithBos(options.prompt).size()), options.max_tokens,
            config);
  const CalibrationSet calibration = options.recipe.OpenText(model, options.common.seed);
  HeldOutText heldout = OpenHeldOut(options.text, model, calibration);
  heldout.Limit(options.text_tokens, ProtocolWindow(options.protocol, config));
  const auto progress = options.common.MakeProgress();
  const Job job = {options, context, model, calibration, heldout, *progress};

  std::vector<Variant> variants;
  variants.emplace_back("original", model.plan);
  {
    const Decoder original(context, model.weights, model.plan);
    fmt::print("{}: {} layers, hidden {}, {} parameters, {} a token, {}\n", model.name, config.layers, config.hidden,
               Scaled(static_cast<double>(original.Parameters()), ""),
               Scaled(static_cast<double>(original.BytesPerToken()), "B"), Name(model.weights->embedding.dtype));
  }
  if (!calibration.source.empty())
    fmt::print("calibration: {}\n  {}\n\n", calibration.source, calibration.Accounting());

  const ShiftResult result = Shift({context, model, calibration, *progress}, shift);
  if (!options.recipe.load_gram.empty())
    fmt::print("sums of {}: {}\n\n", fmt::join(options.recipe.load_gram, ", "), result.calibration);
  PrintSelection(result.selection, config.layers);
  PrintSites(result.sites);
  PrintMergedRuns(result.merged_runs);
  PrintTrials(result);
  PrintGate(result.gate);

  variants.emplace_back("pruned", result.pruned);
  if (shift.correction->name != "none")
    variants.emplace_back("pruned + " + Label(*shift.correction, shift.fit.rank, shift.span), result.corrected);
  if (result.merged) variants.emplace_back(fmt::format("merged ({})", options.recipe.merge), *result.merged);
  const auto start = std::chrono::steady_clock::now();
  Compare(job, variants);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  PrintVariants(options, variants, heldout.Description());
  fmt::print("\nseconds: select {:.1f}, calibrate {:.1f}, solve {:.2f}, factorize {:.2f}, evaluate {:.1f}\n",
             result.seconds.select, result.seconds.calibrate, result.seconds.solve, result.seconds.factorize, seconds);

  Json json = ResultJson(model, calibration, result, variants, seconds);
  if (!options.report.empty()) WriteReport(job, result, variants);
  if (!options.save.empty()) {
    Json provenance = json;
    provenance["lambda"] = Format(shift.fit.ridge.lambda);
    provenance["factorization"] = Name(shift.fit.factorization);
    provenance["merge"] = Name(shift.merge);
    provenance["correction"] = shift.correction->name;
    provenance["calibration_mode"] = Name(shift.mode);
    provenance["token_weight"] = Format(shift.weighting);
    provenance["span"] = shift.span;
    SaveAdapted(model, result.merged ? *result.merged : result.corrected, provenance.dump(), options.save_weights,
                options.save);
    fmt::print("saved: {}\n", options.save);
  }
  if (!datasets.empty()) {  // last: what took hours is saved by now
    fmt::print("\n");
    json["evaluation"] =
        RunEvaluation(context, model, VariantsOf(model, result, shift), PaperCriterion(result.selection, config.layers),
                      datasets, options.evaluation, *progress);
  }
  options.common.WriteJson(json);
  return 0;
}

}  // namespace

Command AddRun(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  options->common.AddTo(app, /*with_json=*/true);
  options->common.AddMemoryTo(app);
  options->recipe.AddTo(app);
  app.add_option("--text", options->text, "held-out text for the perplexity (demo brings its own)");
  AddTextTokens(app, options->text_tokens);
  app.add_option("--protocol", options->protocol, "gptq or seq128")->capture_default_str();
  app.add_option("--prompt", options->prompt, "every variant continues it")->capture_default_str();
  app.add_option("--max-tokens", options->max_tokens, "of the continuation")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--report", options->report, "write a page with tables and charts to this directory")
      ->check(DirectoryOutput());
  app.add_option("--save", options->save, "write plan and adapters to this directory")->check(DirectoryOutput());
  app.add_flag("--save-weights", options->save_weights, "with --save: the kept blocks too, so that it stands alone");
  options->evaluation.AddTo(app, "--eval");
  app.footer(
      "Criteria:" + CriteriaHelp() +
      "\n\nExamples:\n  shiftrt run --model demo --prune bi:0.25 --lra 64\n"
      "  shiftrt run --model demo --save-gram demo.gram --gram-layers all\n"
      "  shiftrt run --model demo --load-gram demo.gram --prune bi:0.4 --lra full --lambda 1e-3rel\n"
      "  shiftrt run --model demo --prune streamline:4 --span --calibration-mode sequential --token-weight norm\n"
      "  shiftrt run --model demo --prune ppl-greedy:4,tokens=8192 --correction replaceme\n"
      "  shiftrt run --model demo --prune bi:6 --correction auto --gate\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --lra 64 --calib c4.jsonl --eval paper7 --data ~/data\n"
      "  shiftrt run --model qwen2-1.5b --prune \"reverse*:7\" --lra full --merge full --calib c4.jsonl --save out");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
