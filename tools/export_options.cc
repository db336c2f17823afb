// SPDX-License-Identifier: Apache-2.0
#include "tools/export_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "shiftrt/error.h"

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

void PrintExport(const ExportTarget& target, const std::vector<std::string>& notes) {
  fmt::print("exported as {}: {}\n", target.format, target.output.string());
  for (const std::string& note : notes) fmt::print("  {}\n", note);
}

}  // namespace shiftrt
