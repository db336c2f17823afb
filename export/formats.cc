// SPDX-License-Identifier: Apache-2.0
#include "export/formats.h"

#include <algorithm>

#include "export/staged_directory.h"
#include "runtime/check.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

std::string Names(const std::vector<const ExportFormat*>& formats) {
  std::vector<std::string_view> names;
  names.reserve(formats.size());
  for (const ExportFormat* format : formats) names.emplace_back(format->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// `why_not`: the reason why another format could not be taken instead; "" if it could.
template <typename WhyNotOf>
[[noreturn]] void Refuse(const ExportFormat& format, const std::string& reason, const ExportSettings& settings,
                         const WhyNotOf& why_not) {
  std::vector<const ExportFormat*> others;
  for (const ExportFormat& other : ExportFormats())
    if (why_not(other).empty() && (!settings.q8_0 || other.q8_0)) others.push_back(&other);
  FailUsage(Field("format"), "{} cannot hold this model: {}. {}{}", format.name, reason,
            others.empty() ? "No format can" : fmt::format("Formats that can: {}", Names(others)),
            format.holds != nullptr ? fmt::format(". {} holds what the {} makes", format.name, format.holds) : "");
}

// Why the adapters of the plan have no place in the format; "" if they have.
std::string WhyNotAdapters(const ExportFormat& format, const DepthPlan& plan) {
  const std::vector<const AdapterStage*> adapters = plan.Adapters();
  const auto has_place = [&](const AdapterStage* adapter) {
    if (adapter->lra->bias_alone()) return format.adapters || format.normed_adapters;
    return adapter->lra->normed() ? format.normed_adapters : format.adapters;
  };
  const auto first = std::find_if_not(adapters.begin(), adapters.end(), has_place);
  if (first == adapters.end()) return "";
  if (!format.adapters && !format.normed_adapters)
    return fmt::format("it has {}, the first for layer {}, which {} has no place for",
                       Counted(std::ssize(adapters), "adapter"), Name((*first)->parts.front()), format.name);
  return fmt::format(
      "its adapter for layer {} reads {}, and {} has a place only for those that read {}",
      Name((*first)->parts.front()), (*first)->lra->normed() ? "the normed stream" : "the stream itself", format.name,
      (*first)->lra->normed() ? "the stream itself" : "the normed stream, which the recipe portable makes");
}

}  // namespace

const std::vector<ExportFormat>& ExportFormats() {
  static const std::vector<ExportFormat> formats = {HfFormat(), HfLraFormat(), GgufFormat(), MergekitFormat()};
  return formats;
}

const ExportFormat& FindExportFormat(std::string_view name) {
  return RowNamed(ExportFormats(), name, "format", "unknown format \"{}\"");
}

std::string WhyNoModel(const ExportFormat& format, const ModelConfig& config, bool parts) {
  std::string why = format.why_no_model != nullptr ? format.why_no_model(config) : "";
  if (why.empty() && parts && format.why_no_parts != nullptr) why = format.why_no_parts(config);
  return why;
}

void CheckFormat(const ExportFormat& format, const ModelConfig& config, const ExportSettings& settings, bool parts) {
  const std::string reason =
      settings.q8_0 && !format.q8_0 ? "it does not store Q8_0" : WhyNoModel(format, config, parts);
  if (reason.empty()) return;
  Refuse(format, reason, settings, [&](const ExportFormat& other) { return WhyNoModel(other, config, parts); });
}

std::string WhyNot(const ExportFormat& format, const Model& model, const DepthPlan& plan) {
  if (std::string reason = WhyNoModel(format, model.weights->config); !reason.empty()) return reason;
  if (plan.blocks() == 0) return "it has no blocks";
  for (const BlockStage* block : plan.Blocks())
    if (block->halves != Halves::kBoth && !format.half_blocks)
      return fmt::format("of block {} only the {} runs, which {} has no place for", block->layer, Name(block->halves),
                         format.name);
  if (std::string why = WhyNotAdapters(format, plan); !why.empty()) return why;
  for (const BlockStage* block : plan.Blocks())
    if (block->own && !format.own_tensors)
      return fmt::format("block {} has tensors of its own, which {} has no place for", block->layer, format.name);
  for (const BlockStage* block : plan.Blocks())
    if (HasOtherUnits(*model.weights, *block) && !format.other_units)
      return fmt::format("the MLP of block {} has {} units, and the configuration {}, which {} has no place for",
                         block->layer, MlpUnits(TensorsOf(*model.weights, *block)), model.weights->config.intermediate,
                         format.name);
  if (plan.output && !format.own_tensors)
    return fmt::format("it has a head or a final norm of its own, which {} has no place for", format.name);
  return format.why_not(model, plan);
}

std::string Kept(const ExportFormat& format, const Model& model, const DepthPlan& plan) {
  std::vector<std::string> parts = {Counted(plan.blocks(), "block")};
  if (plan.half_blocks() > 0) parts.back() += fmt::format(", of {} of which one half runs", plan.half_blocks());
  if (const auto adapters = std::ssize(plan.Adapters()); adapters > 0) parts.push_back(Counted(adapters, "adapter"));
  const std::vector<const BlockStage*> blocks = plan.Blocks();
  const auto own =
      std::count_if(blocks.begin(), blocks.end(), [](const BlockStage* block) { return block->own != nullptr; });
  if (own > 0) parts.push_back(fmt::format("own weights of {}", Counted(own, "block")));
  if (plan.output) parts.emplace_back("a head or a final norm of its own");
  if (model.lora) parts.emplace_back("LoRA, merged");
  if (format.own_tensors && model.tokenizer) parts.emplace_back("the tokenizer");
  return fmt::format("{}{}", format.own_tensors ? "" : "the choice of ", fmt::join(parts, "; "));
}

std::vector<std::string> Export(const ExportFormat& format, const ExportJob& job, const std::filesystem::path& output) {
  const auto why_not = [&](const ExportFormat& other) { return WhyNot(other, job.model, job.plan); };
  if (job.settings.q8_0 && !format.q8_0) Refuse(format, "it does not store Q8_0", job.settings, why_not);
  if (const std::string reason = why_not(format); !reason.empty()) Refuse(format, reason, job.settings, why_not);
  StagedDirectory staged(output);
  std::vector<std::string> notes = format.write(job, staged.path());
  format.verify(job, staged.path());
  staged.Commit();
  return notes;
}

}  // namespace shiftrt
