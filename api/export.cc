// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/export.h"

#include "api/impl.h"
#include "export/formats.h"
#include "export/staged_directory.h"

namespace shiftrt {

std::vector<ExportFormatName> ExportFormatNames() {
  std::vector<ExportFormatName> names;
  for (const ExportFormat& format : ExportFormats())
    names.push_back({format.name, format.summary, format.adapters, format.normed_adapters, format.own_tensors,
                     format.half_blocks, format.holds != nullptr ? format.holds : ""});
  return names;
}

std::vector<ExportChoice> ExportChoices(const LanguageModel& model) {
  const Model& inner = model.impl().model;
  const std::vector<ExportFormatName> names = ExportFormatNames();
  std::vector<ExportChoice> choices;
  for (size_t i = 0; i < names.size(); ++i) {
    const ExportFormat& format = ExportFormats()[i];
    ExportChoice& choice = choices.emplace_back(ExportChoice{.format = names[i], .opened_by = format.opened_by});
    choice.why_not = WhyNot(format, inner, inner.plan);
    if (!choice.why_not.empty()) continue;
    choice.keeps = Kept(format, inner, inner.plan);
    if (format.loses != nullptr) choice.loses = format.loses(inner.plan);
  }
  return choices;
}

void CheckExport(const std::string& format, const std::filesystem::path& output) {
  FindExportFormat(format);
  CheckNewDirectory(output);
}

void CheckExport(const LanguageModel& model, const ExportSettings& settings, bool parts) {
  CheckFormat(FindExportFormat(settings.format), model.impl().model.weights->config, settings, parts);
}

std::vector<std::string> Export(const LanguageModel& model, const std::filesystem::path& output,
                                const ExportSettings& settings, const Resources& resources, Progress* progress) {
  const Model& inner = model.impl().model;
  const ExportFormat& format = FindExportFormat(settings.format);
  const Provenance made = inner.provenance.value_or(Provenance());
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  ProgressOf reports(progress);
  std::vector<std::string> notes = Export(format, {context, inner, inner.plan, made, settings, reports}, output);
  // In bfloat16, a loss of 0.6 was seen to cost less than 0.3% of perplexity.
  constexpr double kMuch = 0.75;
  const double lost =
      inner.lora && inner.unmerged ? MergeError(*inner.weights, *inner.unmerged, *inner.lora, inner.plan) : 0;
  if (lost > kMuch)
    notes.push_back(fmt::format(
        "Rounding to {} errs by {:.0f}% of the change by LoRA. An export in float32 (--dtype float32) keeps all of it.",
        Name(inner.weights->embedding.dtype), 100 * lost));
  return notes;
}

}  // namespace shiftrt
