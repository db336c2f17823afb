// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "shiftrt/evaluate.h"
#include "shiftrt/finetune.h"
#include "shiftrt/recipe.h"
#include "tools/evaluation.h"
#include "tools/finetune_output.h"
#include "tools/options.h"
#include "tools/outputs.h"
#include "tools/paper/finetuning.h"
#include "tools/paper/paper.h"
#include "tools/report_output.h"
#include "tools/standard_output.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char *kFrozen = "frozen", *kTrainable = "trainable";

struct FinetuneCommand {
  CommonOptions common;
  EvaluationOptions evaluation{.tasks = ""};
  FinetuneSettings settings;  // all but what the words below are parsed into
  std::string preset, method = "lora", calib, validation = "200", loss = "ce", schedule = "linear", warmup = "0.03";
  std::string replacement = "block", text, save, checkpoint, report, budget;
  std::vector<std::string> adapters = {kFrozen};
  int64_t text_tokens = 0;
  double checkpoint_minutes = 10;
  bool save_weights = false, merge_lora = false;
};

// Gives the options that the command line leaves out the values of the preset.
void TakePreset(const CLI::App& app, FinetuneCommand& options) {
  const FinetunePreset& named = FindFinetunePreset(options.preset);
  const FinetuneSettings& preset = named.settings;
  const auto take = [&](const char* option, auto& value, const auto& from) {
    if (app.count(option) == 0) value = from;
  };
  take("--method", options.method, Name(preset.method));
  take("--adapters", options.adapters, named.adapters);
  take("--head", options.settings.head, preset.head);
  take("--layers", options.settings.layers, preset.layers);
  take("--calib", options.calib, preset.text);
  take("--samples", options.settings.samples, preset.samples);
  take("--validation", options.validation, std::to_string(preset.validation));
  take("--length", options.settings.length, preset.length);
  take("--divide", options.settings.divide, preset.divide);
  take("--batch", options.settings.batch, preset.batch);
  take("--epochs", options.settings.epochs, preset.epochs);
  take("--rate", options.settings.rate, preset.rate);
  take("--loss", options.loss, Name(preset.loss));
  take("--schedule", options.schedule, Name(preset.decay));
  take("--validate-every", options.settings.validate_every, preset.validate_every);
  take("--keep-best", options.settings.keep_best, preset.keep_best);
  // A length that the user gives takes the place of the preset's.
  if (app.count("--budget") + app.count("--steps") + app.count("--epochs") == 0)
    options.settings.budget = preset.budget;
}

// A number of steps, or a share of them.
double ParseWarmup(const std::string& text) {
  double warmup = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, warmup);
  if (error != std::errc() || stop != end)
    throw UsageError("warmup",
                     fmt::format("\"{}\" is neither a number of steps (100) nor a share of them (0.05)", text));
  return warmup;
}

// "200", "FILE" or "FILE:200".
void ParseValidation(const FinetuneCommand& options, FinetuneSettings& settings) {
  const std::string& text = options.validation;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, settings.validation);
  const auto refuse = [&] {
    throw UsageError(fmt::format("--validation {}: a number of sequences, or NAME|FILE[:sequences]", text));
  };
  if (error == std::errc() && stop == end) {
    if (settings.validation < 0) refuse();
    return;
  }
  try {
    const CalibrationSpec spec = ParseCalibration(text);
    settings.validation_text = spec.source;
    settings.validation = spec.samples;
  } catch (const UsageError&) {  // its reason would name --calib
    refuse();
  }
}

FinetuneSettings Parse(const FinetuneCommand& options) {
  FinetuneSettings parsed = options.settings;
  parsed.method = ParseMethod(options.method);
  parsed.loss = ParseTrainingLoss(options.loss);
  parsed.decay = ParseDecay(options.schedule);
  parsed.warmup = ParseWarmup(options.warmup);
  parsed.replacement = ParseReplacement(options.replacement);
  if (!options.budget.empty()) parsed.budget = ParseTrainingBudget(options.budget);
  parsed.seed = options.common.seed;
  parsed.checkpoint_seconds = 60 * options.checkpoint_minutes;
  ParseValidation(options, parsed);
  return parsed;
}

// Refuses an option that says nothing about the method that was chosen.
void RefuseStrangers(const CLI::App& app, Method method) {
  const auto name = [](const char* option, const char* field) { return std::pair(option, field); };
  for (const auto& [option, field] :
       {name("--rank", "lora.rank"), name("--alpha", "lora.alpha"), name("--dropout", "lora.dropout"),
        name("--targets", "lora.targets"), name("--layers", "layers"), name("--replacement", "replacement"),
        name("--keep-correction", "keep_correction"), name("--loss", "loss"), name("--head", "head"),
        name("--adapters", "adapters")})
    if (app.count(option) > 0) CheckGiven(method, field);
  if (app.count("--merge-lora") > 0 && method != Method::kLora)
    FailUsage("--merge-lora does not go with --method {}", Name(method));
}

// One training of the command and where its result goes.
struct Training {
  std::string name;  // "frozen" or "trainable" where there are both
  FinetuneSettings settings;
  fs::path save;
};

std::vector<Training> Trainings(const FinetuneCommand& command, const LanguageModel& model,
                                const FinetuneSettings& settings) {
  std::vector<std::string> modes = command.adapters;
  if (std::set(modes.begin(), modes.end()).size() < modes.size())
    FailUsage("--adapters {}: a word is given twice", fmt::join(modes, ","));
  // A preset made for models with adapters goes with one that has none, as in the paper's own comparison.
  if (!command.preset.empty() && model.Adapters() == 0) modes = {kFrozen};
  std::vector<Training> trainings;
  for (const std::string& mode : modes) {
    Training& training = trainings.emplace_back();
    training.settings = settings;
    training.settings.adapters = mode == kTrainable;
    training.save = command.save;
    fs::path& checkpoint = training.settings.checkpoint;
    checkpoint = command.checkpoint.empty() ? CheckpointFor(command.save) : fs::path(command.checkpoint);
    if (modes.size() == 1) continue;
    training.name = mode;
    training.save /= mode;
    checkpoint += "-" + mode;
  }
  return trainings;
}

// The held-out text whose perplexity is measured before and after, or "".
std::string HeldOutName(const FinetuneCommand& command, const LanguageModel& model) {
  if (!command.text.empty()) PullMissingTexts(command.text, command.common);
  return DefaultText(command.text, model.Directory(), "heldout.txt");
}

void PrintPaper(const FinetuneCommand& command, const LanguageModel& model) {
  const auto numbers = PaperFinetuningNumbers(PaperModel(model.Directory().string()), command.preset);
  if (numbers.empty()) return;
  Table table({"paper: " + numbers.front().model, "mean accuracy, %"});
  for (const PaperFinetuning& row : numbers) table.Add({row.label, fmt::format("{:.2f}", row.accuracy)});
  fmt::print("\n{}paper: reverse*, a quarter of the layers removed, mean of its zero-shot suites\n", table.Text());
}

int Run(const FinetuneCommand& command) {
  FinetuneSettings settings = Parse(command);
  RefuseSizes(command.calib);
  RefuseMissingTexts({command.text, NamesIn(command.calib), settings.validation_text});
  const Suites suites = command.evaluation.Load(command.common);
  const Resources resources = command.common.MakeResources();
  const LanguageModel model = command.common.OpenLanguageModel();
  for (const Training& training : Trainings(command, model, settings))
    RefuseSavingOver(model, command.common.model, training.save);
  const auto progress = command.common.MakeProgress();
  const bool first = command.common.processes->first();  // Only this process writes.
  // The text to learn from is what was named, or calibration.txt in the model's directory, as for `run`, or C4.
  settings.text = DefaultText(command.calib, model.Directory(), "calibration.txt");
  if (settings.text.empty()) settings.text = "c4";
  PullMissingTexts(NamesIn(settings.text), command.common);
  if (!settings.validation_text.empty()) PullMissingTexts(settings.validation_text, command.common);

  const std::string heldout = HeldOutName(command, model);
  const auto measure = [&](const LanguageModel& measured) {
    if (heldout.empty()) return TextPerplexity();
    return MeasurePerplexity(measured, heldout, {"gptq", command.text_tokens}, resources, progress.get());
  };
  const std::vector<Training> trainings = Trainings(command, model, settings);
  // A training checks itself before its first step, but the perplexity and the trainings before it come earlier.
  if (!heldout.empty() || trainings.size() > 1)
    for (const Training& training : trainings) CheckFinetune(model, training.settings);
  const TextPerplexity before = measure(model);
  std::vector<ModelVariant> tuned;
  std::vector<TrainingOutcome> outcomes;
  TrainingOutline outline;
  for (const Training& training : trainings) {
    FinetunedModel result =
        TrainShown(model, training.settings, resources, {training.name, outcomes.empty(), command.common.quiet, first});
    outline = result.outline;
    if (first) {
      result.model.Save(training.save, command.save_weights, command.merge_lora);
      fmt::print("saved: {}\n", training.save.string());
      const bool apart = settings.method == Method::kLora && !settings.head && !command.merge_lora;
      WarnOfRounding(result.rounding, apart ? SavedChange::kUnrounded : SavedChange::kRounded);
    }
    outcomes.push_back({training.name, result, training.settings.keep_best, measure(result.model).perplexity});
    const std::string name = training.name.empty() ? "tuned" : training.name;
    tuned.push_back({name, name, std::move(result.model)});
  }

  Json json = {
      {"model", model.Name()}, {"preset", command.preset}, {"text", outline.text}, {"trainings", Json::array()}};
  for (const TrainingOutcome& outcome : outcomes) json["trainings"].push_back(TrainingJson(outcome));
  if (!heldout.empty()) {
    json["perplexity_before"] = before.perplexity;
    const std::string part =
        before.tokens == before.all ? "" : fmt::format(", first {} of {} tokens", before.tokens, before.all);
    Table table({"perplexity (gptq) on " + before.text + part, "before", "after"});
    for (const TrainingOutcome& outcome : outcomes)
      table.Add({outcome.name.empty() ? Name(settings.method) : outcome.name, fmt::format("{:.2f}", before.perplexity),
                 fmt::format("{:.2f}", outcome.perplexity)});
    fmt::print("\n{}", table.Text());
  }
  Page page = TrainingPage(fmt::format("{}: {}", model.Name(), Name(settings.method)),
                           fmt::format("{}. {}.", outline.text, outline.accounting), outcomes);
  fs::path journal;
  if (!suites.empty()) {
    fmt::print("\n");
    std::vector<ModelVariant> variants = SavedVariants(model);
    variants.insert(variants.end(), tuned.begin(), tuned.end());
    EvaluationResult result =
        RunEvaluation({variants, PaperSettingOf(model), resources, *progress}, suites, command.evaluation);
    json["evaluation"] = std::move(result.json);
    page.sections.push_back(std::move(result.section));
    journal = std::move(result.journal);
  }
  if (first && !command.report.empty()) WriteReport(page, command.report);
  if (!command.preset.empty()) PrintPaper(command, model);
  command.common.WriteJson(json);
  // Until here the same command goes on from a finished training, whatever interrupts what follows it.
  RequireStandardOutput();
  RemoveJournal(journal);
  for (const Training& training : trainings) {
    std::error_code ignored;
    if (first) fs::remove(training.settings.checkpoint, ignored);
  }
  return 0;
}

void AddTrainingOptions(CLI::App& app, FinetuneCommand& options) {
  FinetuneSettings& training = options.settings;
  app.add_option("--epochs", training.epochs, "how often the text is read")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--steps", training.steps, "stop after so many steps; 0: when the epochs are over")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  CLI::Option* const budget = app.add_option(
      "--budget", options.budget,
      "stop when so much is spent, however often the text is read: a time (90s, 30min, 2h) or tokens=1M. Tokens\n"
      "give the same bits again; with a time, the number of steps depends on the machine");
  budget->excludes(app.get_option("--epochs"))->excludes(app.get_option("--steps"));
  app.add_option("--batch", training.batch, "sequences per step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--pass-tokens", training.pass_tokens,
                 "tokens that pass through the model together. A step adds up the gradients of as many passes as its\n"
                 "batch takes; the memory for activations grows with it")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--rate", training.rate,
                 "learning rate of AdamW (default: by method and hidden size, docs/training.md#the-learning-rate)")
      ->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "how the rate falls after the warm-up: linear, cosine or constant")
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "steps over which the rate rises, or a share of all steps")
      ->capture_default_str();
  app.add_option("--weight-decay", training.weight_decay, "weight decay of matrices; norms and biases have none")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--clip", training.clip, "largest norm of the gradient; 0: no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--validate-every", training.validate_every,
                 "steps between two validation losses; below 1: a share of the training; 0: before the first step and\n"
                 "after the last only")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--keep-best", training.keep_best, "save the state with the lowest validation loss, not the last one");
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
         "error of the stream after the run")
      ->capture_default_str();
  app.add_option(
      "--calib", options->calib,
      "text to learn from: FILE, or c4, wikitext2 or alpaca, or several with commas between them, which are\n"
      "mixed. A .txt file is divided into windows of --length tokens; in other formats each document is a\n"
      "sequence (default: calibration.txt in the model's directory, or c4). " +
          std::string(kOwnTextHelp));
  app.add_option("--samples", options->settings.samples, "sequences to learn from; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--length", options->settings.length, "tokens at which a sequence is cut")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_flag("--divide", options->settings.divide,
               "divide a longer document into several sequences instead of cutting it; a row of Alpaca is cut");
  app.add_option("--validation", options->validation,
                 "sequences of the text that are held out for the validation loss, but at most a fifth of it; or\n"
                 "another text, NAME|FILE[:sequences]")
      ->capture_default_str();
  app.add_flag("--train-on-inputs", options->settings.train_on_inputs,
               "learn the prompts of rows of Alpaca and of own:PROMPTS too");
  app.add_option("--adapters", options->adapters,
                 "whether the model's adapters are trained too: frozen or trainable; with both, separated by a comma,\n"
                 "there is one training for each, saved to DIR/frozen and DIR/trainable")
      ->delimiter(',')
      ->check(CLI::IsMember({kFrozen, kTrainable}))
      ->capture_default_str();
  app.add_flag("--head", options->settings.head, "train the head too");
  app.add_option("--targets", options->settings.lora.targets,
                 "lora: projections that it changes, of q,k,v,o,gate,up,down")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rank", options->settings.lora.rank, "lora: rank of the changes")->capture_default_str();
  app.add_option("--alpha", options->settings.lora.alpha, "lora: the changes are multiplied by alpha / rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--dropout", options->settings.lora.dropout, "lora: share of its input that is dropped")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option("--layers", options->settings.layers,
                 "partial: blocks of which every tensor is trained: last:N, first:N, all, or layers of the original\n"
                 "model (3,5,8-10)")
      ->capture_default_str();
  app.add_option("--replacement", options->replacement,
                 "replacement: block, a copy of the first removed one; mlp, its MLP half; or mlp:UNITS, an MLP of so\n"
                 "many units (mlp:128), those of the run's MLPs that would change the stream most, which adds nothing\n"
                 "at first")
      ->capture_default_str();
  app.add_flag("--keep-correction", options->settings.keep_correction,
               "replacement: keep what stands for a run already (of --correction joint, refit or lra), with the new\n"
               "block after it. The block's output projections begin at zero: training begins at the fit's error");
  app.add_option("--loss", options->loss,
                 "ce: cross entropy with the text; kl: divergence from the predictions of the original model, which\n"
                 "runs as well, over the same weights; both: half of each")
      ->capture_default_str();
  AddTrainingOptions(app, *options);
  app.add_option("--save", options->save, "write the result to this directory")->check(DirectoryOutput())->required();
  app.add_flag("--save-weights", options->save_weights,
               "write the kept weights too, so that the directory needs no base model");
  app.add_flag("--merge-lora", options->merge_lora, "lora: add the changes to the projections when saving");
  app.add_option("--text", options->text,
                 "held-out text whose perplexity is measured before and after (the demo model has its own)");
  AddTextTokens(app, options->text_tokens);
  AddReport(app, options->report, "write an HTML page with the loss curves to this directory");
  options->evaluation.AddTo(app, "--eval");
  std::string presets;
  for (const FinetunePreset& preset : FinetunePresets())
    presets += fmt::format("\n  {:<24}{}", preset.name, preset.summary);
  app.footer(
      "Presets:" + presets +
      "\n\nExamples:\n  shiftrt run --model demo --prune bi:0.25 --lra 64 --save out\n"
      "  shiftrt finetune --model out --save out-tuned --adapters trainable --steps 20\n"
      "  shiftrt finetune --model out --method partial --layers last:3 --head --rate 3e-5 --save out-partial\n"
      "  shiftrt finetune --model out --method adapters --loss kl --save out-distilled\n"
      "  shiftrt finetune --model out --preset recover --budget tokens=1M --calib c4 --save out-recovered\n"
      "  shiftrt finetune --model out --preset recover --budget 30min --calib own:prompts.txt,c4 --save out-recovered\n"
      "  shiftrt finetune --model out --method replacement --replacement mlp --save out-replaced\n"
      "  shiftrt finetune --model out-joint --method replacement --keep-correction --save out-replaced\n"
      "  shiftrt finetune --model out --method replacement --replacement mlp:128 --keep-correction --save out-mlp\n"
      "  shiftrt finetune --model out --calib alpaca --length 256 --epochs 2 --validate-every 50 --save out-alpaca\n"
      "  shiftrt finetune --model out --preset paper-lora --samples 500 --save out-lora --report page\n"
      "  mpirun -n 4 shiftrt finetune --model out --batch 32 --pass-tokens 2048 --save out-tuned    (docs/scale.md)");
  return [options, &app] {
    if (!options->preset.empty()) TakePreset(app, *options);
    RefuseStrangers(app, ParseMethod(options->method));
    return Run(*options);
  };
}

}  // namespace shiftrt
