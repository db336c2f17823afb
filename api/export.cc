// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/export.h"

#include "api/impl.h"
#include "export/formats.h"
#include "export/staged_directory.h"

namespace shiftrt {

std::vector<ExportFormatName> ExportFormatNames() {
  std::vector<ExportFormatName> names;
  for (const ExportFormat& format : ExportFormats()) names.push_back({format.name, format.summary});
  return names;
}

void CheckExport(const std::string& format, const std::filesystem::path& output) {
  FindExportFormat(format);
  CheckNewDirectory(output);
}

std::vector<std::string> Export(const LanguageModel& model, const std::filesystem::path& output,
                                const ExportSettings& settings, const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const ExportFormat& format = FindExportFormat(settings.format);
  const ExportOptions options = {settings.shard_bytes, settings.q8_0, settings.base_name};
  const Provenance made = inner.provenance.value_or(Provenance());
  const Context context = MakeContext(resources);
  ProgressOf reports(progress);
  return Export(format, {context, inner, inner.plan, made, options, reports}, output);
}

}  // namespace shiftrt
