// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "eval/perplexity.h"
#include "models/adapted.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/parse.h"
#include "text/documents.h"
#include "tools/evaluation.h"
#include "tools/finetune_output.h"
#include "tools/options.h"
#include "tools/paper/finetuning.h"
#include "tools/paper/paper.h"
#include "tools/pulling.h"
#include "tools/table.h"
#include "tools/texts.h"
#include "tools/variants.h"
#include "train/finetune.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char *kFrozen = "frozen", *kTrainable = "trainable";

struct FinetuneCommand {
  CommonOptions common;
  EvaluationOptions evaluation{.tasks = ""};
  std::string preset, method = "lora", train, validation = "200", layers = "last:3", loss = "ce", schedule = "linear";
  std::string warmup = "0.03", replacement = "block", text, save, checkpoint, report;
  std::vector<std::string> targets = LoraOptions().targets, adapters = {kFrozen};
  LoraOptions lora;
  int64_t samples = 0, length = 512, epochs = 1, steps = 0, text_tokens = 0;
  double rate = 1e-4, checkpoint_minutes = 10;
  TrainingOptions training;
  bool head = false, train_on_inputs = false, save_weights = false, merge_lora = false, keep_correction = false;
};

// What the preset says, where the command line does not.
void TakePreset(const CLI::App& app, FinetuneCommand& options) {
  const FinetunePreset& preset = FindFinetunePreset(options.preset);
  const auto take = [&](const char* option, auto& value, const auto& from) {
    if (app.count(option) == 0) value = from;
  };
  take("--method", options.method, Name(preset.method));
  take("--adapters", options.adapters, preset.adapters);
  take("--head", options.head, preset.head);
  take("--layers", options.layers, preset.layers);
  take("--train", options.train, preset.text);
  take("--samples", options.samples, preset.samples);
  take("--validation", options.validation, std::to_string(preset.validation));
  take("--length", options.length, preset.length);
  take("--batch", options.training.batch, preset.batch);
  take("--epochs", options.epochs, preset.epochs);
  take("--rate", options.rate, preset.rate);
}

// The text to learn from: what was named, or calibration.txt in the model's directory, as for `run`, or C4.
std::string TrainingSource(const FinetuneCommand& options, const Model& model) {
  std::string source = options.train;
  if (source.empty()) {
    const fs::path beside = model.directory / "calibration.txt";
    source = fs::exists(beside) ? beside.string() : "c4";
  }
  options.common.processes->FirstBeforeOthers(
      [&] { return PullMissingText(source, options.common.offline, options.common.quiet); });
  return source;
}

TrainingTexts OpenTexts(const FinetuneCommand& options, const Model& model) {
  TrainingTextOptions text;
  text.source = TrainingSource(options, model);
  text.samples = options.samples;
  text.length = std::min(options.length, model.weights->config.max_positions);
  text.train_on_inputs = options.train_on_inputs;
  text.seed = options.common.seed;
  // "200", "FILE" or "FILE:200".
  const std::string& validation = options.validation;
  if (!ParseNumber(validation, &text.validation)) {
    const CalibrationSpec spec = ParseCalibration(validation);
    text.validation_source = spec.source;
    text.validation = spec.samples;
    options.common.processes->FirstBeforeOthers(
        [&] { return PullMissingText(spec.source, options.common.offline, options.common.quiet); });
  }
  if (text.validation < 0) FailUsage("--validation {}: a number of sequences, or NAME|FILE[:sequences]", validation);
  return LoadTrainingTexts(text, model.RequireTokenizer());
}

int64_t StepsOf(const FinetuneCommand& options, int64_t sequences) {
  const int64_t per_epoch = ReadingOrder(sequences, options.training.batch, 0).steps_per_epoch();
  const int64_t most = per_epoch * options.epochs;
  if (options.steps > most)
    FailUsage("--steps {}: the text has {} sequences, which make {} steps of {} in {} epoch{}; give --epochs {}",
              options.steps, sequences, most, options.training.batch, options.epochs, options.epochs == 1 ? "" : "s",
              (options.steps + per_epoch - 1) / per_epoch);
  return options.steps > 0 ? options.steps : most;
}

FinetuneOptions Parse(const FinetuneCommand& options) {
  FinetuneOptions parsed;
  parsed.trainable.method = ParseMethod(options.method);
  parsed.trainable.lora = options.lora;
  parsed.trainable.lora.targets = options.targets;
  parsed.trainable.layers = options.layers;
  parsed.trainable.head = options.head;
  parsed.trainable.seed = parsed.training.seed = options.common.seed;
  parsed.loss = ParseLoss(options.loss);
  parsed.replacement = {options.replacement == "mlp" ? Halves::kMlp : Halves::kBoth, options.keep_correction};
  parsed.training = options.training;
  parsed.training.seed = options.common.seed;
  parsed.training.checkpoint_seconds = 60 * options.checkpoint_minutes;
  parsed.training.schedule.rate = options.rate;
  parsed.training.schedule.decay = ParseDecay(options.schedule);
  return parsed;
}

// An option that says nothing about the method that was chosen.
void RefuseStrangers(const CLI::App& app, Method method) {
  const auto refuse = [&](const char* option, bool fits) {
    if (app.count(option) > 0 && !fits) FailUsage("{} does not go with --method {}", option, Name(method));
  };
  const bool lora = method == Method::kLora, replacement = method == Method::kReplacement;
  for (const char* option : {"--rank", "--alpha", "--dropout", "--targets", "--merge-lora"}) refuse(option, lora);
  refuse("--layers", method == Method::kPartial);
  for (const char* option : {"--replacement", "--keep-correction"}) refuse(option, replacement);
  for (const char* option : {"--loss", "--head", "--adapters"}) refuse(option, !replacement);
  refuse("--adapters", method != Method::kAdapters);
}

// One training of the command and where its result goes.
struct Training {
  std::string name;  // "frozen" or "trainable" where there are both
  FinetuneOptions options;
  fs::path save, checkpoint;
};

std::vector<Training> Trainings(const FinetuneCommand& command, const Model& model, const FinetuneOptions& options) {
  std::vector<std::string> modes = command.adapters;
  // A preset made for models with adapters goes with one that has none, as in the paper's own comparison.
  if (!command.preset.empty() && model.plan.Adapters().empty()) modes = {kFrozen};
  fs::path save = command.save;
  if (!save.has_filename()) save = save.parent_path();  // "out/"
  std::vector<Training> trainings;
  for (const std::string& mode : modes) {
    Training& training = trainings.emplace_back();
    training.options = options;
    training.options.trainable.adapters = mode == kTrainable;
    training.save = save;
    training.checkpoint = command.checkpoint.empty() ? save.string() + ".checkpoint" : command.checkpoint;
    if (modes.size() == 1) continue;
    training.name = mode;
    training.save /= mode;
    training.checkpoint += "-" + mode;
  }
  return trainings;
}

// The saved model's provenance with that of the training, which holds no times: the same command gives the same files.
Json TunedProvenance(const FinetuneCommand& command, const FinetuneJob& job, const FinetuneResult& result) {
  Json json = Json::object();
  if (job.model.provenance) json = OpenProvenance(ResolveModel(command.common.model));
  if (!json.is_object()) json = Json::object();
  Json settings = Json::object();
  for (const auto& [setting, value] : SettingsOf(job)) settings[setting] = value;
  Json before = {{"correction", json.value("correction", Json())}, {"merge", json.value("merge", Json())}};
  json["correction"] = "finetuned";
  json["merge"] = "off";
  json["finetune"] = {{"settings", settings},
                      {"text", job.texts.source},
                      {"before", before},
                      {"tokens", result.history.tokens},
                      {"loss", result.history.losses.back()}};
  if (!result.history.validations.empty())
    json["finetune"]["validation"] = {result.history.validations.front().loss, result.history.validations.back().loss};
  return json;
}

void Save(const FinetuneCommand& command, const Training& training, const FinetuneJob& job,
          const FinetuneResult& result) {
  const bool merge = result.lora && command.merge_lora;
  const DepthPlan plan = merge ? MergeLora(*job.model.weights, result.plan, *result.lora) : result.plan;
  SaveAdapted(job.model, plan, TunedProvenance(command, job, result), command.save_weights, training.save,
              result.lora && !merge ? &*result.lora : nullptr);
  fmt::print("saved: {}\n", training.save.string());
}

// Of an error, relative to the change by LoRA, that comes from rounding to the type of the weights.
void WarnOfRounding(double error, bool merged) {
  constexpr double kMuch = 0.75;  // of bfloat16, 0.6 was seen to cost less than 0.3% of perplexity
  if (error <= kMuch) return;
  fmt::print(stderr,
             "shiftrt: rounding to the type of the weights errs by {:.0f}% of the change that was trained; {}\n",
             100 * error,
             merged ? "with --dtype float32 it is saved in float32"
                    : "it is saved unrounded, and commands with --dtype float32 merge it without rounding");
}

FinetuneResult RunTraining(const FinetuneJob& job) {
  const bool first = job.context.processes->first();
  if (first && fs::exists(job.checkpoint))
    std::fprintf(stderr, "shiftrt: continuing from %s, where an interrupted training left off\n",
                 job.checkpoint.c_str());
  try {
    return Finetune(job);
  } catch (const Interrupted&) {
    if (first && fs::exists(job.checkpoint))
      std::fprintf(stderr, "shiftrt: the training is kept in %s; the same command continues from there\n",
                   job.checkpoint.c_str());
    throw;
  }
}

// Held-out text whose perplexity is measured before and after, or none.
std::optional<HeldOutText> OpenText(const FinetuneCommand& command, const Model& model) {
  if (command.text.empty() && !fs::exists(model.directory / "heldout.txt")) return std::nullopt;
  HeldOutText text = OpenHeldOut({command.text, /*wikitext=*/false}, model, {}, command.common);
  text.Limit(command.text_tokens, ProtocolWindow("gptq", model.weights->config));
  return text;
}

void PrintPaper(const FinetuneCommand& command, const Model& model) {
  const auto numbers = PaperFinetuningNumbers(PaperModel(model.directory.string()), command.preset);
  if (numbers.empty()) return;
  Table table({"paper: " + numbers.front().model, "mean accuracy, %"});
  for (const PaperFinetuning& row : numbers) table.Add({row.label, fmt::format("{:.2f}", row.accuracy)});
  fmt::print("\n{}paper: reverse*, a quarter of the layers removed, mean of its zero-shot suites\n", table.Text());
}

int Run(const FinetuneCommand& command) {
  FinetuneOptions options = Parse(command);
  const std::vector<Dataset> datasets =
      command.evaluation.tasks.empty() ? std::vector<Dataset>() : command.evaluation.Load(command.common);
  const Context context = command.common.MakeContext();
  const bool first = context.processes->first();  // the one that writes
  const Model model = command.common.Open();
  const auto progress = command.common.MakeProgress();
  const TrainingTexts texts = OpenTexts(command, model);
  context.processes->CheckSame("training text (hash)", texts.hash);
  options.training.schedule.steps = StepsOf(command, texts.training.sequences());
  options.training.schedule.warmup = ParseWarmup(command.warmup, options.training.schedule.steps);
  const std::optional<HeldOutText> heldout = OpenText(command, model);

  fmt::print("{}: {} blocks, {} adapters\ntext: {}\n  {}\n", model.name, model.plan.blocks(),
             model.plan.Adapters().size(), texts.source, texts.accounting);
  const auto perplexity = [&](const DepthPlan& plan) {
    Decoder decoder(context, model.weights, plan);
    const int64_t window = ProtocolWindow("gptq", model.weights->config);
    return WindowedPerplexity(decoder, heldout->tokens, window, "gptq", *progress).perplexity;
  };
  const double before = heldout ? perplexity(model.plan) : 0;
  std::vector<Variant> variants = SavedVariants(model);
  std::vector<TrainingOutcome> outcomes;
  const std::vector<Training> trainings = Trainings(command, model, options);
  for (const Training& training : trainings) {
    TrainingDisplay display(command.common.quiet);
    const auto announce = [&](const std::string& summary) {
      fmt::print("\n{}{}{}: {} steps of {} sequences\n  {}\n", Name(options.trainable.method),
                 training.name.empty() ? "" : ", adapters ", training.name, options.training.schedule.steps,
                 options.training.batch, summary);
      std::fflush(stdout);
    };
    const FinetuneJob job = {context, model, texts, training.options, training.checkpoint, announce, std::ref(display)};
    const FinetuneResult result = RunTraining(job);
    if (first) Save(command, training, job, result);
    const DepthPlan tuned = result.lora ? MergeLora(*model.weights, result.plan, *result.lora) : result.plan;
    if (first && result.lora)
      WarnOfRounding(MergeError(*model.weights, result.plan, *result.lora, tuned), command.merge_lora);
    const std::string name = training.name.empty() ? "tuned" : training.name;
    variants.push_back({VariantKind::kCorrected, name, name, tuned});
    outcomes.push_back({training.name, result.history, result.parameters, result.peak_bytes, result.kept_blocks,
                        heldout ? perplexity(tuned) : 0});
  }

  Json json = {{"model", model.name}, {"preset", command.preset}, {"text", texts.source}, {"trainings", Json::array()}};
  for (const TrainingOutcome& outcome : outcomes) json["trainings"].push_back(TrainingJson(outcome));
  if (heldout) {
    json["perplexity_before"] = before;
    Table table({"perplexity (gptq) on " + heldout->Description(), "before", "after"});
    for (const TrainingOutcome& outcome : outcomes)
      table.Add({outcome.name.empty() ? Name(options.trainable.method) : outcome.name, fmt::format("{:.2f}", before),
                 fmt::format("{:.2f}", outcome.perplexity)});
    fmt::print("\n{}", table.Text());
  }
  if (first && !command.report.empty()) {
    const std::string title = fmt::format("{}: {}", model.name, Name(options.trainable.method));
    WritePage(TrainingPage(title, fmt::format("{}. {}.", texts.source, texts.accounting), outcomes), command.report);
    fmt::print("report: {}/index.html\n", command.report);
  }
  if (!datasets.empty()) {
    fmt::print("\n");
    const PaperSetting paper = PaperSettingOf(model);
    json["evaluation"] = RunEvaluation({context, model, variants, paper, *progress}, datasets, command.evaluation);
  }
  if (!command.preset.empty()) PrintPaper(command, model);
  command.common.WriteJson(json);
  // Until here the same command goes on from a finished training, whatever interrupts what follows it.
  for (const Training& training : trainings) {
    std::error_code ignored;
    if (first) fs::remove(training.checkpoint, ignored);
  }
  return 0;
}

void AddTrainingOptions(CLI::App& app, FinetuneCommand& options) {
  TrainingOptions& training = options.training;
  app.add_option("--epochs", options.epochs, "how often the text is read")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "stop after so many steps; 0: when the epochs are over")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--batch", training.batch, "sequences per step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--pass-tokens", training.pass_tokens,
                 "tokens that pass through the model together. A step adds up the gradients of as many passes as its\n"
                 "batch takes; the memory for activations grows with it")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--rate", options.rate, "learning rate of AdamW")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--schedule", options.schedule, "how the rate falls after the warm-up: linear, cosine or constant")
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "steps over which the rate rises, or a share of all steps")
      ->capture_default_str();
  app.add_option("--weight-decay", training.weight_decay, "of matrices; norms and biases do not decay")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--clip", training.clip, "largest norm of the gradient; 0: no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--validate-every", training.validate_every,
                 "steps between two validation losses; 0: before the first step and after the last only")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--checkpoint-minutes", options.checkpoint_minutes, "minutes between two checkpoints")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--checkpoint", options.checkpoint,
                 "file of the checkpoint, from which the same command continues (default: DIR.checkpoint)")
      ->check(FileOutput());
}

}  // namespace

Command AddFinetune(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<FinetuneCommand>();
  options->common = CommonOptions(processes);
  CommonOptions::RefuseSplitIn(app, "start it on hosts that have memory for the model");
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "the choice and order of sequences, the first values of LoRA, and dropout");
  options->common.AddActivationMemoryTo(app);
  options->common.AddQuietTo(app);
  options->common.AddJsonTo(app);
  app.add_option("--preset", options->preset,
                 "experiment of the paper (listed below); other options override its settings");
  app.add_option(
         "--method", options->method,
         "lora: low-rank changes of projections; partial: whole blocks; adapters: the linear residual adapters\n"
         "alone; replacement: one block in the place of each run of removed blocks, trained on the squared\n"
         "error of the stream behind the run")
      ->capture_default_str();
  app.add_option("--train", options->train,
                 "text to learn from: FILE, or c4, wikitext2 or alpaca. Of .txt windows of --length tokens are\n"
                 "sequences, of other formats documents (default: calibration.txt in the model's directory, or c4)");
  app.add_option("--samples", options->samples, "sequences to learn from; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--length", options->length, "tokens at which a sequence is cut")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--validation", options->validation,
                 "sequences of the text that are held out for the validation loss, but at most a fifth of it; or\n"
                 "another text, NAME|FILE[:sequences]")
      ->capture_default_str();
  app.add_flag("--train-on-inputs", options->train_on_inputs, "learn the prompts of rows of Alpaca too");
  app.add_option("--adapters", options->adapters,
                 "whether the model's adapters are trained too: frozen or trainable; with both, separated by a comma,\n"
                 "there is one training for each, saved to DIR/frozen and DIR/trainable")
      ->delimiter(',')
      ->check(CLI::IsMember({kFrozen, kTrainable}))
      ->capture_default_str();
  app.add_flag("--head", options->head, "train the head too");
  app.add_option("--targets", options->targets, "lora: projections that it changes, of q,k,v,o,gate,up,down")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rank", options->lora.rank, "lora: rank of the changes")->capture_default_str();
  app.add_option("--alpha", options->lora.alpha, "lora: the changes are multiplied by alpha / rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--dropout", options->lora.dropout, "lora: share of its input that is dropped")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option("--layers", options->layers,
                 "partial: blocks of which every tensor is trained: last:N, first:N, all, or layers of the original\n"
                 "model (3,5,8-10)")
      ->capture_default_str();
  app.add_option("--replacement", options->replacement,
                 "replacement: block, a copy of the first removed one; or mlp, its MLP half")
      ->check(CLI::IsMember({"block", "mlp"}))
      ->capture_default_str();
  app.add_flag("--keep-correction", options->keep_correction,
               "replacement: keep what stands for a run already (of --correction joint, refit or lra), with the new\n"
               "block behind it. The block's output projections begin at zero: training begins at the fit's error");
  app.add_option("--loss", options->loss,
                 "ce: cross entropy with the text; kl: divergence from the predictions of the original model, which\n"
                 "runs beside over the same weights; both: half of each")
      ->capture_default_str();
  AddTrainingOptions(app, *options);
  app.add_option("--save", options->save, "write the result to this directory")->check(DirectoryOutput())->required();
  app.add_flag("--save-weights", options->save_weights,
               "write the kept weights too, so that the directory needs no base model");
  app.add_flag("--merge-lora", options->merge_lora, "lora: add the changes to the projections when saving");
  app.add_option("--text", options->text,
                 "held-out text whose perplexity is measured before and after (the demo model has its own)");
  AddTextTokens(app, options->text_tokens);
  app.add_option("--report", options->report, "write an HTML page with the loss curves to this directory")
      ->check(DirectoryOutput());
  options->evaluation.AddTo(app, "--eval");
  std::string presets;
  for (const FinetunePreset& preset : FinetunePresets())
    presets += fmt::format("\n  {:<24}{}", preset.name, preset.summary);
  app.footer(
      "Presets:" + presets +
      "\n\nExamples:\n  shiftrt run --model demo --prune bi:0.25 --lra 64 --save out\n"
      "  shiftrt finetune --model out --save out-tuned --adapters trainable --steps 100\n"
      "  shiftrt finetune --model out --method partial --layers last:3 --head --rate 3e-5 --save out-partial\n"
      "  shiftrt finetune --model out --method adapters --loss kl --save out-distilled\n"
      "  shiftrt finetune --model out --method replacement --replacement mlp --save out-replaced\n"
      "  shiftrt finetune --model out-joint --method replacement --keep-correction --save out-replaced\n"
      "  shiftrt finetune --model out --train alpaca --length 256 --epochs 2 --validate-every 50 --save out-alpaca\n"
      "  shiftrt finetune --model out --preset paper-lora --samples 500 --save out-lora --report page\n"
      "  mpirun -n 4 shiftrt finetune --model out --batch 32 --pass-tokens 2048 --save out-tuned    (docs/scale.md)");
  return [options, &app] {
    if (!options->preset.empty()) TakePreset(app, *options);
    RefuseStrangers(app, ParseMethod(options->method));
    return Run(*options);
  };
}

}  // namespace shiftrt
