// SPDX-License-Identifier: Apache-2.0
#include "export/model_card.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/gguf.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// True for "org/name": two parts made of the characters that the hub allows.
bool LooksLikeRepository(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
  const size_t slash = name.find('/');
  return slash != name.npos && slash > 0 && slash + 1 < name.size() && name.find('/', slash + 1) == name.npos &&
         name.front() != '.' && name.find_first_not_of(kAllowed) == name.npos;
}

// The repository of a directory DIR/models--org--name/snapshots/REVISION of the hub's cache.
std::optional<std::string> RepositoryOfCache(const fs::path& directory) {
  constexpr std::string_view kPrefix = "models--";
  for (const fs::path& part : directory) {
    std::string name = part.string();
    if (!name.starts_with(kPrefix)) continue;
    name.erase(0, kPrefix.size());
    if (const size_t between = name.find("--"); between != name.npos) return name.replace(between, 2, "/");
  }
  return std::nullopt;
}

std::string NameOf(const ExportJob& job) {
  if (!job.settings.base_name.empty()) return job.settings.base_name;
  const fs::path directory = fs::absolute(job.model.directory).lexically_normal();
  if (const auto repository = RepositoryOfCache(directory)) return *repository;
  const Json named = BaseConfig(job.model.directory).value("_name_or_path", Json());
  if (named.is_string() && LooksLikeRepository(named.get_ref<const std::string&>())) return named.get<std::string>();
  const std::string& given = job.provenance.model;  // to the command that pruned it
  return WithName(given.empty() ? directory : fs::path(given)).filename().string();
}

// The lines "license: ..." and the like in the metadata block of the original's own card.
std::string LicenceLines(const fs::path& card) {
  constexpr uint64_t kMaxCard = 1 << 24;
  std::error_code error;
  if (!fs::is_regular_file(card, error) || fs::file_size(card, error) > kMaxCard) return "";
  const std::string text = ReadFile(card, kMaxCard);
  std::string lines;
  size_t begin = text.find('\n') + 1;
  if (!text.starts_with("---") || begin == 0) return "";
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.starts_with("---")) return lines;
    if (line.starts_with("license:") || line.starts_with("license_name:") || line.starts_with("license_link:"))
      lines += std::string(line.substr(0, line.find('\r'))) + "\n";
    begin = end + 1;
  }
  return "";  // a block that does not end is no block
}

std::string Row(std::string_view what, const std::string& value) {
  return value.empty() ? "" : fmt::format("| {} | {} |\n", what, value);
}

std::string Count(int64_t count) { return count > 0 ? std::to_string(count) : ""; }

// A table with the perplexity of every variant that was measured, and on which text.
std::string Measured(const Provenance& provenance) {
  std::string rows, on;
  for (const MeasuredVariant& variant : provenance.variants)
    if (!std::isnan(variant.perplexity)) rows += fmt::format("| {} | {:.3f} |\n", variant.label, variant.perplexity);
  if (rows.empty()) return "";
  if (provenance.heldout) {
    const HeldOutReport& text = *provenance.heldout;
    on = fmt::format("Perplexity on {} tokens of {}: protocol {}, {} of {} tokens.\n\n", text.tokens, text.text,
                     text.protocol, text.window < text.tokens ? "windows" : "one window", text.window);
  }
  return fmt::format("\n## Measured{}\n\n{}| model | held-out perplexity |\n|---|---|\n{}",
                     provenance.finetune ? "" : " when it was made", on, rows);
}

}  // namespace

Original OriginalOf(const ExportJob& job) {
  Original original;
  original.name = NameOf(job);
  original.on_hub = LooksLikeRepository(original.name);
  original.removed =
      job.model.removed.empty() ? job.plan.RemovedLayers(job.model.weights->config.layers) : job.model.removed;
  original.layers = job.plan.blocks() + std::ssize(original.removed);
  for (int64_t layer = 0; layer < original.layers; ++layer)
    if (!std::binary_search(original.removed.begin(), original.removed.end(), layer)) original.kept.push_back(layer);
  const std::vector<const BlockStage*> blocks = job.plan.Blocks();
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i]->halves != Halves::kBoth)
      original.halves.emplace_back(original.kept[i], RunsMlp(blocks[i]->halves) ? Halves::kAttention : Halves::kMlp);
  return original;
}

std::string DequantisedFrom(const ExportJob& job, bool blocks) {
  const BlockStage& first = *job.plan.Blocks().front();
  const TensorView& up = TensorsOf(*job.model.weights, first).AnyUp();
  const bool as_they_came = blocks && !job.settings.q8_0 && IsQuantised(up.dtype) &&
                            up.data == job.model.weights->blocks[first.layer].AnyUp().data;
  return as_they_came ? "" : QuantisationOf(*job.model.weights);
}

// The type of the matrices in the export, for people.
static std::string TypeOfWeights(const ExportJob& job, bool blocks) {
  if (job.settings.q8_0) return "Q8_0";
  const DType type = job.model.weights->embedding.dtype;
  if (!blocks) return Name(ExpandedType(type));
  if (const std::string& rounded = job.provenance.recipe.quantise; !rounded.empty() && rounded != "off") return rounded;
  return IsQuantised(type) ? QuantisationOf(*job.model.weights) : Name(type);
}

std::string ModelCard(const ExportJob& job, const std::string& usage, const std::vector<std::string>& notes,
                      const char* library) {
  const Original original = OriginalOf(job);
  const bool blocks = library == std::string_view("gguf");
  const Provenance& how = job.provenance;
  std::string card = "---\n" + LicenceLines(job.model.directory / "README.md");
  if (original.on_hub) card += fmt::format("base_model: {}\n", original.name);
  card += fmt::format("library_name: {}\npipeline_tag: text-generation\ntags:\n- shiftrt\n", library);
  const bool pruned = !original.removed.empty() || !original.halves.empty();
  std::string gone =
      fmt::format("{} of the {} transformer blocks of {}", original.removed.size(), original.layers, original.name);
  if (original.removed.empty()) {
    gone = fmt::format("{} {} of the {} transformer blocks of {}", original.halves.size(),
                       original.halves.size() == 1 ? "half" : "halves", original.layers, original.name);
  } else if (!original.halves.empty()) {
    gone += fmt::format(" and {} of others",
                        original.halves.size() == 1 ? "1 half" : fmt::format("{} halves", original.halves.size()));
  }
  card += pruned ? "- pruned\n---\n\n" : "---\n\n";
  card += fmt::format("# {}, {} of {} blocks{}\n\n", original.name, job.plan.blocks(), original.layers,
                      original.halves.empty() ? "" : fmt::format(", {} of them half", original.halves.size()));
  const bool trained = how.finetune || how.recipe.correction == "finetuned";
  card += !pruned ? "All blocks of the original model, written by shiftrt.\n"
                  : fmt::format("{} {} removed by shiftrt, and the model was {}.\n", gone,
                                original.removed.size() + original.halves.size() == 1 ? "was" : "were",
                                trained ? "fine-tuned afterwards" : "not trained afterwards");
  card += "\n## How it was made\n\n| | |\n|---|---|\n";
  card += Row("original model", original.name);
  card += Row("blocks removed (numbered from 0)", fmt::format("{}", fmt::join(original.removed, ", ")));
  card += Row("halves removed", Names(original.halves));
  card += Row("criterion of the selection", how.criterion);
  card += Row("correction", how.recipe.correction);
  card += Row("adapters", job.plan.Adapters().empty() ? "" : std::to_string(job.plan.Adapters().size()));
  const std::string& merge = how.recipe.merge;
  card += Row("merging of adapters", merge == "off" ? "" : merge);
  card += Row("lambda", how.recipe.lambda);
  // Without a fit, the text was read by the criterion alone.
  const bool selected = how.recipe.correction == "none" && (how.recipe.heal.empty() || how.recipe.heal == "off");
  const char* const text = selected ? "text of the selection" : "calibration text";
  card += Row(text, how.calibration ? how.calibration->source : "");
  card += Row(selected ? "tokens of it" : "calibration tokens", how.calibration ? Count(how.calibration->tokens) : "");
  if (how.finetune) {
    card += Row("fine-tuned on", how.finetune->text);
    card += Row("tokens of fine-tuning", Count(how.finetune->tokens));
  }
  card += Row("parameters", std::to_string(job.plan.Parameters(*job.model.weights)));
  card += Row("type of the weights", TypeOfWeights(job, blocks));
  card += Row("dequantised from", DequantisedFrom(job, blocks));
  card += Row("written by", "shiftrt " SHIFTRT_VERSION);
  card += Measured(how);
  card += "\n## Use\n\n" + usage;
  if (!notes.empty()) card += "\n## Notes\n\n";
  for (const std::string& note : notes) card += "- " + note + "\n";
  return card;
}

}  // namespace shiftrt
