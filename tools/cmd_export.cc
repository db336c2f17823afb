// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "shiftrt/error.h"
#include "shiftrt/export.h"
#include "shiftrt/repair.h"
#include "tools/export_options.h"
#include "tools/options.h"
#include "tools/selection.h"
#include "tools/shift_output.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct ExportCommand {
  CommonOptions common;
  ExportSettings settings;
  std::string output, prune, calib, quantise;
  bool without_lora = false, yes = false;
};

// Throws UsageError where the selection can leave half blocks, and the format has no place for them.
void CheckHalves(const PruneSpec& prune, const std::string& format) {
  if (!prune.halves() || FormatOf({format, ""}).half_blocks) return;
  std::vector<std::string> others;
  for (const ExportFormatName& one : ExportFormatNames())
    if (one.half_blocks) others.push_back(one.name);
  throw UsageError(fmt::format("--prune {} may leave half blocks, which {} has no place for; it works with --format {}",
                               Format(prune), format, fmt::join(others, " or ")));
}

// Throws UsageError for a model with adapters where the format has no place for them, with the way that works: the
// trained one where the model was trained.
void CheckAdapters(const LanguageModel& model, const ExportCommand& command) {
  const ExportFormatName format = FormatOf({command.settings.format, ""});
  if (format.adapters || !format.own_tensors || model.Adapters() == 0 || model.HalfBlocks() > 0) return;
  std::string why;
  for (const ExportChoice& choice : ExportChoices(model))
    if (choice.format.name == format.name) why = choice.why_not;
  if (why.empty()) return;
  std::vector<std::string> others;
  for (const ExportFormatName& one : ExportFormatNames())
    if (one.adapters) others.push_back(one.name);
  const bool trained = model.MadeBy() != nullptr && model.MadeBy()->finetune;
  throw UsageError(fmt::format(
      "--format {} cannot hold {}: {}. `shiftrt run --{}{}` makes a model without adapters{}; --format {} takes "
      "adapters",
      format.name, command.common.model, why, format.holds, trained ? " --recover 15min" : "",
      trained ? ", trained as this one is" : " (trained: add --recover 15min)", fmt::join(others, " or ")));
}

// The model without what is to be pruned. Calibration text is opened only if the criterion reads it.
LanguageModel Pruned(const ExportCommand& command, const PruneSpec& prune, const LanguageModel& model,
                     const Resources& resources, Progress& progress) {
  Recipe recipe = {.prune = prune, .correction = "none", .seed = command.common.seed};
  if (ReadsText(recipe)) recipe.text = CalibrationFor(command.calib, model, command.common);
  RepairResult repair = Repair(model, recipe, resources, &progress);
  const Selection& selection = repair.report.selection;
  fmt::print("layers {}: {}\n", RemovedBy(selection), Names(selection.removed));
  return std::move(repair.pruned);
}

// The model with weights of fewer bits. Calibration text is opened only if the rounding reads it.
LanguageModel Rounded(const ExportCommand& command, const QuantiseSpec& spec, const LanguageModel& model,
                      const Resources& resources, Progress& progress) {
  CalibrationSpec text;
  if (spec.reads_text()) text = CalibrationFor(command.calib, model, command.common);
  LanguageModel rounded = Quantise(model, spec, text, command.common.seed, resources, &progress);
  PrintQuantised(*rounded.MadeBy()->repair->quantised);
  return rounded;
}

// Lists what every format makes of the model, and the command that does it.
int ListFormats(const ExportCommand& command, const LanguageModel& model) {
  const std::string prune = command.prune.empty() ? "" : fmt::format(" --prune {}", command.prune);
  for (const ExportChoice& choice : ExportChoices(model)) {
    if (!choice.why_not.empty()) {
      fmt::print("{}: loses a part of this model: {}\n", choice.format.name, choice.why_not);
      continue;
    }
    fmt::print(
        "{}: holds this model\n  keeps: {}\n  loses: {}\n  opened by: {}\n  command: shiftrt export --model {}{} "
        "--format {} --save DIR\n",
        choice.format.name, choice.keeps, choice.loses.empty() ? "nothing" : choice.loses, choice.opened_by,
        command.common.model, prune, choice.format.name);
  }
  return 0;
}

int Run(ExportCommand command) {
  const bool lists = command.settings.format.empty();
  if (!lists) CheckExport(command.settings.format, command.output);
  std::optional<PruneSpec> prune;
  if (!command.prune.empty()) prune = ParsePrune(command.prune);
  if (prune && !lists) CheckHalves(*prune, command.settings.format);
  const QuantiseSpec quantise = command.quantise.empty() ? QuantiseSpec() : ParseQuantise(command.quantise);
  if (!command.calib.empty() && command.prune.empty() && !quantise.any())
    throw UsageError("--calib requires --prune or --quantize");
  if (quantise.any() && command.settings.format != "gguf")
    throw UsageError(
        fmt::format("--quantize goes with --format gguf: {} has no quantised blocks", command.settings.format));
  command.settings.q8_0 = command.common.dtype == "q8_0";
  if (quantise.any() && command.settings.q8_0)
    throw UsageError("--dtype q8_0 does not go with --quantize, which chooses the types; leave one of them out");
  if (command.settings.q8_0) command.common.dtype = "auto";
  // The other formats have no quantised blocks.
  command.common.expand = !lists && command.settings.format != "gguf";
  command.common.merge_lora = !command.without_lora;
  const Resources resources = command.common.MakeResources();
  const auto progress = command.common.MakeProgress();
  LanguageModel model = command.common.OpenLanguageModel();
  if (prune) CheckRemoval(model, *prune, command.yes);
  if (prune) model = Pruned(command, *prune, model, resources, *progress);
  if (lists) return ListFormats(command, model);
  if (quantise.any()) model = Rounded(command, quantise, model, resources, *progress);
  CheckAdapters(model, command);
  PrintExport({command.settings.format, command.output},
              Export(model, command.output, command.settings, resources, progress.get()));
  return 0;
}

}  // namespace

Command AddExport(CLI::App& app) {
  auto command = std::make_shared<ExportCommand>();
  CommonOptions& common = command->common;
  common.device = "cpu";
  common.AddModelTo(app);
  common.AddLoraTo(app);
  app.add_flag("--no-lora", command->without_lora,
               "leave out the LoRA factors of a saved model; peft can load DIR/lora on this export")
      ->excludes(app.get_option("--lora"));
  auto* prune = app.add_option("--prune", command->prune,
                               "remove layers first, as `shiftrt run --prune ... --correction none` does:\n"
                               "layers=5,8-10 or CRITERION:AMOUNT")
                    ->excludes(app.get_option("--lora"));
  AddYes(app, command->yes);
  app.get_option("--yes")->needs(prune);
  app.add_option(
      "--calib", command->calib,
      "calibration text of a criterion or a rounding that reads it: FILE or a known name, as for `run`, with the same\n"
      "default");
  std::vector<std::string> formats;
  for (const ExportFormatName& format : ExportFormatNames()) formats.push_back(format.name);
  command->settings.format.clear();
  auto* format = app.add_option("--format", command->settings.format,
                                "format to write; without it, the formats that hold the model are listed")
                     ->check(CLI::IsMember(formats));
  auto* save = app.add_option("--save", command->output, "directory to write; it must be new or empty")
                   ->check(DirectoryOutput())
                   ->needs(format);
  format->needs(save);
  app.add_option("--quantize", command->quantise,
                 "round the weights to types of fewer bits first, in GGUF: MIXTURE[,nearest|importance|feedback];\n"
                 "feedback, the default, and importance read calibration text:" +
                     MixturesHelp())
      ->needs(format);
  app.add_option("--dtype", common.dtype, "type of the weights that are written; auto: as stored")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "q8_0"}))
      ->capture_default_str();
  AddExportOptions(app, command->settings);
  common.AddSeedTo(app, "criteria that draw random numbers, and of the choice of calibration samples");
  common.AddThreadsTo(app);
  common.AddQuietTo(app);
  app.footer(
      "Formats:" + ExportFormatsHelp() +
      "\n\nExamples:\n  shiftrt export --model out\n  shiftrt export --model qwen2-1.5b --prune layers=3.attn,20-22\n"
      "  shiftrt export --model out --format hf --save out-hf\n"
      "  shiftrt export --model qwen2-1.5b --prune layers=20-22 --format gguf --save pruned --dtype q8_0\n"
      "  shiftrt export --model out --format gguf --quantize q4_k_m --calib c4 --save out-q4\n"
      "  shiftrt export --model tuned --format hf --save base-hf --no-lora\n"
      "  shiftrt export --model base --lora adapter --format gguf --save merged\n"
      "  shiftrt export --model out --format hf --save out-hf --dtype float16 --shard-size 2GB\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --correction replaceme --calib c4.jsonl --export hf:out");
  return [command] { return Run(*command); };
}

}  // namespace shiftrt
