// SPDX-License-Identifier: Apache-2.0
#include "tools/export_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "shiftrt/error.h"
#include "tools/outputs.h"

namespace shiftrt {

std::vector<CLI::Option*> AddExportOptions(CLI::App& app, ExportSettings& settings) {
  auto* shard_size =
      app.add_option("--shard-size", settings.shard_bytes, "largest size of a file of weights, such as 5GB or 900MiB")
          ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 60))
          ->default_str("5GB");
  auto* base_model =
      app.add_option("--base-model", settings.base_name,
                     "name of the original model for the model card and for mergekit, such as Qwen/Qwen2-1.5B\n"
                     "(default: as its directory and its config.json say)");
  return {shard_size, base_model};
}

std::string ExportFormatsHelp() {
  std::string help;
  for (const ExportFormatName& format : ExportFormatNames())
    help += fmt::format("\n  {:<10} {}", format.name, format.summary);
  return help;
}

ExportTarget ParseExportTarget(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size())
    throw UsageError(fmt::format("--export {}: expected FORMAT:DIR, such as hf:out", text));
  ExportTarget target = {text.substr(0, colon), text.substr(colon + 1)};
  CheckExport(target.format, target.output);
  return target;
}

ExportFormatName FormatOf(const ExportTarget& target) {
  const std::vector<ExportFormatName> formats = ExportFormatNames();
  return *std::find_if(formats.begin(), formats.end(),
                       [&](const ExportFormatName& format) { return format.name == target.format; });
}

std::vector<ExportTarget> ParseExportTargets(const std::vector<std::string>& texts, const std::string& save,
                                             bool trains, const Recipe& recipe) {
  // `has`: the reason, with the name of what has no place. `instead`: the options with which it works.
  const auto refuse = [](const std::string& text, std::string_view format, const std::string& has,
                         const std::string& instead, const std::vector<std::string>& others) {
    throw UsageError(
        fmt::format("--export {}: {}, which {} has no place for; it works with {}{}", text, has, format, instead,
                    others.empty() ? "" : fmt::format(", or with --export {}:DIR", fmt::join(others, ":DIR or "))));
  };
  const auto takes_adapters = [](const ExportFormatName& format, const RepairEffects& effects) {
    return !effects.adapters || (effects.normed_adapters ? format.normed_adapters : format.adapters);
  };
  const auto formats_for = [&](const RepairEffects& effects, bool halves) {
    std::vector<std::string> names;
    for (const ExportFormatName& format : ExportFormatNames())
      if (takes_adapters(format, effects) && (format.own_tensors || !effects.changes_blocks) &&
          (format.half_blocks || !halves))
        names.push_back(format.name);
    return names;
  };
  std::vector<ExportTarget> targets;
  std::set<std::filesystem::path> taken = {WholePath(save)};
  for (const std::string& text : texts) {
    const auto& [name, output] = targets.emplace_back(ParseExportTarget(text));
    const ExportFormatName format = FormatOf(targets.back());
    const RepairEffects effects = recipe.gate ? RepairEffects() : EffectsOf(recipe);  // the gate may drop all of them
    const bool halves = recipe.prune.halves();
    const std::vector<std::string> others = formats_for(effects, halves);
    if (halves && !format.half_blocks)
      refuse(text, name, fmt::format("--prune {} may leave half blocks", Format(recipe.prune)), "whole blocks", others);
    if (trains && !format.own_tensors)
      refuse(text, name, "--recover changes weights of blocks", "no --recover",
             formats_for({effects.adapters, true, effects.normed_adapters}, false));
    if (!taken.insert(WholePath(output)).second)
      throw UsageError(fmt::format("--export {}: something else is written to this directory too", text));
    const std::string holds = format.holds.empty() ? "--recipe adapters" : "--" + format.holds;
    // A recovery of a repair without adapters changes blocks alone, so it can follow wherever those are taken.
    std::string instead = format.own_tensors ? fmt::format("{0} (trained: {0} --recover 15min)", holds) : holds;
    if (format.normed_adapters) instead += " and, for Llama, Mistral and Qwen 2, with --recipe portable";
    if (!takes_adapters(format, effects))
      refuse(text, name, fmt::format("--correction {} makes adapters", CorrectionName(recipe)), instead, others);
    if (!effects.changes_blocks || format.own_tensors) continue;
    Recipe unhealed = recipe;
    unhealed.heal = Heal::kOff;
    refuse(text, name,
           EffectsOf(unhealed).changes_blocks
               ? fmt::format("--correction {} changes weights of blocks", CorrectionName(recipe))
               : "--heal changes weights of blocks",
           instead, others);
  }
  return targets;
}

void PrintExport(const ExportTarget& target, const std::vector<std::string>& notes) {
  fmt::print("exported as {}: {}\n", target.format, target.output.string());
  for (const std::string& note : notes) fmt::print("  {}\n", note);
}

}  // namespace shiftrt
