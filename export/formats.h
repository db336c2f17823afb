// SPDX-License-Identifier: Apache-2.0
// The formats in which a plan leaves the program: one file export/<name>.cc and one row of the table in
// export/formats.cc per format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace shiftrt {

struct ExportOptions {
  int64_t shard_bytes = 5'000'000'000;  // of tensors per file of weights, where the format has shards
  bool q8_0 = false;                    // matrices in GGUF's Q8_0; only where ExportFormat::q8_0
  std::string base_name;                // the original model's name for others, "org/name"; "": as its files say
};

// References: whoever makes one keeps what it refers to alive.
struct ExportJob {
  const Context& context;
  const Model& model;
  const DepthPlan& plan;             // of model.weights
  const nlohmann::json& provenance;  // as SaveAdapted stores it; null or empty where nothing is known
  const ExportOptions& options;
  Progress& progress;
};

struct ExportFormat {
  const char* name;
  const char* summary;  // a few words for lists of formats
  bool adapters;        // holds plans with adapters
  bool own_tensors;     // holds plans with blocks that have tensors of their own
  bool q8_0;            // holds ExportOptions::q8_0
  // Why it cannot hold this plan of the model, as the end of a sentence; "" where it can. Called for plans of whole
  // blocks, with what the format holds as said above.
  std::string (*why_not)(const Model& model, const DepthPlan& plan);
  // Writes into an empty directory, with all files flushed to disk. Returns notes for the user, whole sentences.
  std::vector<std::string> (*write)(const ExportJob& job, const std::filesystem::path& directory);
  // Reads back what was written, and throws Error where it is not the plan.
  void (*verify)(const ExportJob& job, const std::filesystem::path& directory);
};

// The table: one row per format.
const std::vector<ExportFormat>& ExportFormats();
// Throws UsageError for the field "format", listing the known ones, for a name that is not among them.
const ExportFormat& FindExportFormat(std::string_view name);
// One line per format for --help.
std::string ExportFormatsHelp();

// Why `format` cannot hold this plan, "" where it can.
std::string WhyNot(const ExportFormat& format, const Model& model, const DepthPlan& plan);

// Writes the plan into `output`, a new or empty directory: under a temporary name beside it, read back and compared
// with the plan, then renamed. Where anything fails nothing is left, and `output` is as before. Returns the notes of
// ExportFormat::write. Throws UsageError for a plan that the format cannot hold, naming the reason and the formats that
// can, and for an `output` as CheckNewDirectory does; Error and Interrupted otherwise.
std::vector<std::string> Export(const ExportFormat& format, const ExportJob& job, const std::filesystem::path& output);

// The formats, each in its own file.
const ExportFormat& GgufFormat();
const ExportFormat& HfFormat();
const ExportFormat& HfLraFormat();
const ExportFormat& MergekitFormat();

}  // namespace shiftrt
