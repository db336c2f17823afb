// SPDX-License-Identifier: Apache-2.0
// Options of `export` and of `run --export`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shiftrt/export.h"
#include "shiftrt/repair.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

// Adds --shard-size and --base-model, and returns them.
std::vector<CLI::Option*> AddExportOptions(CLI::App& app, ExportSettings& settings);
// One line per format, for --help.
std::string ExportFormatsHelp();

// A format and where to write it: "hf:out".
struct ExportTarget {
  std::string format;
  std::filesystem::path output;
};
// Throws UsageError for text of another form, an unknown format, or an output that is not new.
ExportTarget ParseExportTarget(const std::string& text);
ExportFormatName FormatOf(const ExportTarget& target);
// The same for all of a command that also saves to `save` (unless that is empty). Throws UsageError for two that write
// to one directory, and for a format that cannot hold what `recipe`, or a training that follows (`trains`), makes.
std::vector<ExportTarget> ParseExportTargets(const std::vector<std::string>& texts, const std::string& save,
                                             bool trains, const Recipe& recipe);

// Prints one line about an export that is done, and its notes.
void PrintExport(const ExportTarget& target, const std::vector<std::string>& notes);

}  // namespace shiftrt
