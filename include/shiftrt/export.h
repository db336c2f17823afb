// SPDX-License-Identifier: Apache-2.0
/// \file
/// Writing a model for other programs (docs/export.md).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shiftrt/export_settings.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// A format.
struct ExportFormatName {
  std::string name = {};         ///< as in ExportSettings::format
  std::string summary = {};      ///< one line for people
  bool adapters = false;         ///< it holds models with adapters
  bool normed_adapters = false;  ///< it holds models whose adapters read the normed stream or are a bias
  bool own_tensors = false;      ///< it holds models with blocks that a repair or a training has changed
  bool half_blocks = false;      ///< it holds models with half blocks
  std::string holds = {};        ///< the options of a recipe whose results it holds; empty: those of all
};
/// \return all formats
std::vector<ExportFormatName> ExportFormatNames();

/// Says what a format makes of a model.
struct ExportChoice {
  ExportFormatName format = {};  ///< the format
  std::string why_not = {};      ///< why it cannot hold the model, as the end of a sentence; empty: it can
  std::string keeps = {};        ///< the parts of the model that the export has, for people
  std::string loses = {};        ///< what is not the same in the export; empty: nothing
  std::string opened_by = {};    ///< the programs that open the export
};
/// \param model the model
/// \return all formats, in the order of ExportFormatNames()
std::vector<ExportChoice> ExportChoices(const LanguageModel& model);

/// Checks what Export() would refuse whatever the model is.
/// \param format the name of a format
/// \param output the directory to write
/// \throws UsageError for an unknown format, and for a directory that is not empty
void CheckExport(const std::string& format, const std::filesystem::path& output);

/// Checks before any repair or training what Export() would refuse however the model is pruned, repaired and trained.
/// \param model the model
/// \param settings the format and its details
/// \param parts the repaired model has half blocks or adapters
/// \throws UsageError for an unknown format, and for one that can hold no model with this configuration (the message
///     names the reason and the formats that can)
void CheckExport(const LanguageModel& model, const ExportSettings& settings, bool parts = false);

/// Writes a model into a new or empty directory: under a temporary name next to it, read back and compared, then
/// renamed. If anything fails, nothing is left.
/// \param model the model
/// \param output the directory
/// \param settings the format and its details
/// \param resources what the export may use of the machine
/// \param progress receives reports; null: none are made
/// \return notes for the user, whole sentences
/// \throws UsageError for an unknown format, for a model that the format cannot hold (the message names the reason and
///     the formats that can), and for a directory that is not empty; Error if something cannot be written; Interrupted
std::vector<std::string> Export(const LanguageModel& model, const std::filesystem::path& output,
                                const ExportSettings& settings = {}, const Resources& resources = {},
                                Progress* progress = nullptr);

}  // namespace shiftrt
