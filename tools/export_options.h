// SPDX-License-Identifier: Apache-2.0
// Options of `export` and of `run --export`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "export/formats.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

// Adds --shard-size and --base-model, and returns them.
std::vector<CLI::Option*> AddExportOptions(CLI::App& app, ExportOptions& options);

// A format and where to write it: "hf:out".
struct ExportTarget {
  const ExportFormat* format;
  std::filesystem::path output;
};
// Throws UsageError for text of another form, an unknown format, or an output that is not new.
ExportTarget ParseExportTarget(const std::string& text);

// Exports and prints one line, and the notes.
void ExportAndPrint(const ExportTarget& target, const ExportJob& job);

}  // namespace shiftrt
