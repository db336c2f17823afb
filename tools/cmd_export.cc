// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "export/staged_directory.h"
#include "models/adapted.h"
#include "tools/export_options.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct ExportCommand {
  CommonOptions common;
  ExportOptions options;
  std::string format, output;
  bool without_lora = false;
};

int Run(ExportCommand command) {
  const ExportTarget target = {&FindExportFormat(command.format), command.output};
  CheckNewDirectory(target.output);
  command.options.q8_0 = command.common.dtype == "q8_0";
  if (command.options.q8_0) command.common.dtype = "auto";
  const Context context = command.common.MakeContext();
  command.common.merge_lora = !command.without_lora;
  const Model model = command.common.Open();
  const nlohmann::json provenance = model.provenance ? OpenProvenance(ResolveModel(model.name)) : nlohmann::json();
  const auto progress = command.common.MakeProgress();
  ExportAndPrint(target, {context, model, model.plan, provenance, command.options, *progress});
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
               "leave the LoRA factors of a saved model out: what peft then loads DIR/lora on")
      ->excludes(app.get_option("--lora"));
  std::vector<std::string> formats;
  for (const ExportFormat& format : ExportFormats()) formats.emplace_back(format.name);
  app.add_option("--format", command->format, "format to write")->required()->check(CLI::IsMember(formats));
  app.add_option("--output", command->output, "directory to write; it must be new or empty")
      ->required()
      ->check(DirectoryOutput());
  app.add_option("--dtype", common.dtype, "type of the weights that are written; auto: as stored")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "q8_0"}))
      ->capture_default_str();
  AddExportOptions(app, command->options);
  common.AddThreadsTo(app);
  common.AddQuietTo(app);
  app.footer(
      "Formats:" + ExportFormatsHelp() +
      "\n\nExamples:\n  shiftrt export --model out --format hf --output out-hf\n"
      "  shiftrt export --model tuned --format hf --output base-hf --no-lora\n"
      "  shiftrt export --model base --lora adapter --format gguf --output merged\n"
      "  shiftrt export --model out --format hf --output out-hf --dtype float16 --shard-size 2GB\n"
      "  shiftrt run --model qwen2-1.5b --prune bi:0.25 --correction replaceme --calib c4.jsonl --export hf:out");
  return [command] { return Run(*command); };
}

}  // namespace shiftrt
