// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shiftrt/evaluate.h"
#include "shiftrt/finetune.h"
#include "tools/evaluation.h"
#include "tools/finetune_options.h"
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

struct FinetuneCommand {
  CommonOptions common;
  EvaluationOptions evaluation{""};
  FinetuneOptions training;
  std::string preset, text, save, report;
  int64_t text_tokens = 0;
  bool save_weights = false, merge_lora = false;
};

// One training of the command and where its result goes.
struct Training {
  std::string name;  // the word of --adapters where there are both
  FinetuneSettings settings;
  fs::path save;
};

std::vector<Training> Trainings(const FinetuneCommand& command, const LanguageModel& model,
                                const FinetuneSettings& settings) {
  std::vector<std::string> modes = command.training.AdapterModes();
  // A preset made for models with adapters goes with one that has none, as in the paper's own comparison.
  if (!command.preset.empty() && model.Adapters() == 0) modes = {"frozen"};
  std::vector<Training> trainings;
  for (const std::string& mode : modes) {
    Training& training = trainings.emplace_back();
    training.settings = settings;
    Set("adapters", mode, training.settings);
    training.save = command.save;
    fs::path& checkpoint = training.settings.checkpoint;
    if (checkpoint.empty()) checkpoint = CheckpointFor(command.save);
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
  FinetuneSettings settings = command.training.Parse(command.common.seed);
  if (command.merge_lora && settings.method != Method::kLora)
    FailUsage("--merge-lora does not go with --method {}", Name(settings.method));
  RefuseSizes(settings.text);
  RefuseMissingTexts({command.text, NamesIn(settings.text), settings.validation_text});
  const Suites suites = command.evaluation.Load(command.common);
  const Resources resources = command.common.MakeResources();
  const LanguageModel model = command.common.OpenLanguageModel();
  for (const Training& training : Trainings(command, model, settings))
    RefuseSavingOver(model, command.common.model, training.save);
  const auto progress = command.common.MakeProgress();
  const bool first = command.common.processes->first();  // Only this process writes.
  // The text to learn from is what was named, or calibration.txt in the model's directory, as for `run`, or C4.
  settings.text = DefaultText(settings.text, model.Directory(), "calibration.txt");
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

}  // namespace

Command AddFinetune(CLI::App& app, const std::shared_ptr<Processes>& processes) {
  auto options = std::make_shared<FinetuneCommand>();
  options->common = CommonOptions(processes);
  CommonOptions::RefuseSplitIn(app, "start it on hosts that have memory for the model");
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "the choice and order of sequences, the first values of LoRA, and dropout");
  options->common.AddActivationMemoryTo(app);
  options->common.AddOutputTo(app);
  app.add_option("--preset", options->preset,
                 "experiment of the paper (listed below); other options override its settings");
  options->training.AddTo(app);
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
  return [options] {
    if (!options->preset.empty()) options->training.TakePreset(FindFinetunePreset(options->preset));
    return Run(*options);
  };
}

}  // namespace shiftrt
