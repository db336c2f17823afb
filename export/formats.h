// SPDX-License-Identifier: Apache-2.0
// The formats in which a plan leaves the program: one file export/<name>.cc and one row of the table in
// export/formats.cc per format.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "include/shiftrt/export_settings.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace shiftrt {

// The members are references: the caller keeps what they refer to alive.
struct ExportJob {
  const Context& context;
  const Model& model;
  const DepthPlan& plan;  // a plan over model.weights
  const Provenance& provenance;
  const ExportSettings& settings;
  Progress& progress;
};

struct ExportFormat {
  const char* name;
  const char* summary;    // a few words for lists of formats
  bool adapters = false;  // holds plans with adapters
  // Holds plans with adapters that read the normed stream, or are a bias alone.
  bool normed_adapters = false;
  bool own_tensors = false;     // holds plans with blocks that have tensors of their own
  bool half_blocks = false;     // holds plans with half blocks
  bool other_units = false;     // holds plans with MLPs of other units than the configuration has
  bool q8_0 = false;            // holds ExportSettings::q8_0
  const char* opened_by = "";   // programs, for lists of formats
  const char* holds = nullptr;  // a recipe or correction whose results it holds, for refusals; null: those of all
  // The reason why the format can hold no plan of such a model, as the end of a sentence; "" if it holds some. Null: it
  // holds plans of every model.
  std::string (*why_no_model)(const ModelConfig& config) = nullptr;
  // The same of a model of which half blocks run, or which has adapters. Null: it holds all that the flags say.
  std::string (*why_no_parts)(const ModelConfig& config) = nullptr;
  // The reason why the format cannot hold this plan of the model, as the end of a sentence; "" if it can. Called only
  // for plans that need nothing which the flags above exclude, of models that why_no_model lets pass.
  std::string (*why_not)(const Model& model, const DepthPlan& plan);
  // Writes the plan into an empty directory and flushes all files to disk. Returns notes for the user, in whole
  // sentences.
  std::vector<std::string> (*write)(const ExportJob& job, const std::filesystem::path& directory);
  // Reads the files back, and throws Error if they are not the plan.
  void (*verify)(const ExportJob& job, const std::filesystem::path& directory);
  // Says in a few words what is not the same in the export; "" for nothing. Null: nothing.
  std::string (*loses)(const DepthPlan& plan) = nullptr;
};

// The table: one row per format.
const std::vector<ExportFormat>& ExportFormats();
// Throws UsageError for the field "format", listing the known ones, for a name that is not among them.
const ExportFormat& FindExportFormat(std::string_view name);

// The reason why `format` can hold no plan of such a model, or not this plan; "" if it can.
std::string WhyNoModel(const ExportFormat& format, const ModelConfig& config, bool parts = false);
std::string WhyNot(const ExportFormat& format, const Model& model, const DepthPlan& plan);

// The parts of the plan that an export in this format has, for people.
std::string Kept(const ExportFormat& format, const Model& model, const DepthPlan& plan);

// Throws UsageError, naming the reason and other formats, where Export() would for every plan of such a model; with
// `parts`, for every plan that has half blocks or adapters.
void CheckFormat(const ExportFormat& format, const ModelConfig& config, const ExportSettings& settings,
                 bool parts = false);

// Writes the plan into `output`, a new or empty directory: under a temporary name next to it, where it is read back and
// compared with the plan, then renamed. If anything fails, nothing is left and `output` is as before. Returns the notes
// of ExportFormat::write. Throws UsageError for a plan that the format cannot hold, naming the reason and the formats
// that can, and for an `output` that CheckNewDirectory refuses; Error and Interrupted otherwise.
std::vector<std::string> Export(const ExportFormat& format, const ExportJob& job, const std::filesystem::path& output);

// The rows of the table, each defined in the file of its format.
const ExportFormat& GgufFormat();
const ExportFormat& HfFormat();
const ExportFormat& HfLraFormat();
const ExportFormat& MergekitFormat();

}  // namespace shiftrt
