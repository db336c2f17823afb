// SPDX-License-Identifier: Apache-2.0
// Writes recipes with which other programs make the pruned model from the original: slices for mergekit's passthrough
// method (https://github.com/arcee-ai/mergekit), and llama.cpp's `llama-quantize --prune-layers` for a GGUF file.
#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

#include "export/formats.h"
#include "export/model_card.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/gguf.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = "mergekit.yaml";
constexpr const char* kScript = "llama-quantize.sh";

// True if model.weights are those of the original, so that its layers can be compared with the plan's.
bool HasOriginal(const Model& model, const DepthPlan& plan) {
  return model.removed.empty() || plan.blocks() + std::ssize(model.removed) == model.weights->config.layers;
}

// Says by which step tensors of the kept blocks were changed or got something in addition; "" if by none.
std::string ChangedBy(const Provenance& made) {
  if (made.finetune) return "fine-tuned";
  const RecipeText& recipe = made.recipe;
  if (!recipe.correction.empty() && recipe.correction != "none")
    return fmt::format("corrected ({})", recipe.correction);
  if (!recipe.heal.empty() && recipe.heal != "off") return fmt::format("healed ({})", recipe.heal);
  return "";
}

std::string WhyNoModelOfMergekit(const ModelConfig& config) {
  // Those with definitions in mergekit's repository, of which none has layers that differ.
  static const std::set<std::string_view> known = {"llama",  "mistral", "qwen2",   "qwen3", "phi3",
                                                   "gemma2", "olmo2",   "granite", "glm4",  "starcoder2"};
  if (!known.contains(config.family))
    return fmt::format("mergekit has no definition of family {} whose layers may be renumbered (it has of {})",
                       config.family, fmt::join(known, ", "));
  if (config.quantisation.any())
    return fmt::format("the original is quantised ({}), and mergekit copies tensors of 16 and 32 bits",
                       config.quantisation.Name());
  if (config.family == "phi3" && config.tied_head)
    return "mergekit's definition of Phi-3 requires a tensor lm_head.weight, and this model's head is its embedding "
           "table";
  const std::vector<int64_t>& windows = config.block.windows;
  if (std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to<>()) != windows.end())
    return "its layers have different attention windows, which these programs assign by the number of the layer";
  return "";
}

std::string WhyNotMergekit(const Model& model, const DepthPlan& plan) {
  if (const std::string changed = HasOriginal(model, plan) || !model.provenance ? "" : ChangedBy(*model.provenance);
      !changed.empty())
    return fmt::format("it was {}, and without the original's weights it cannot be known which tensors that changed",
                       changed);
  if (model.removed.empty() && plan.blocks() == model.weights->config.layers) return "no block is removed";
  return "";
}

// Runs of kept layers: [begin, end).
std::vector<std::pair<int64_t, int64_t>> Slices(const std::vector<int64_t>& kept) {
  std::vector<std::pair<int64_t, int64_t>> slices;
  for (const int64_t layer : kept) {
    if (slices.empty() || slices.back().second != layer) slices.emplace_back(layer, layer);
    ++slices.back().second;
  }
  return slices;
}

// The original's name on the hub, or its directory.
std::string Reference(const ExportJob& job, const Original& original) {
  if (original.on_hub || !job.settings.base_name.empty()) return original.name;
  // mergekit opens directories only.
  if (!HasOriginal(job.model, job.plan) || IsGguf(job.model.directory))
    FailUsage(Field("base_model"),
              "the recipe starts from the original model, and {} does not say which that was: name it",
              job.model.directory.string());
  return fs::absolute(job.model.directory).lexically_normal().string();
}

std::vector<std::string> WriteMergekit(const ExportJob& job, const fs::path& directory) {
  const Original original = OriginalOf(job);
  const std::string name = nlohmann::json(Reference(job, original)).dump();  // quoted as YAML has it too
  AtomicDirectory out(directory);
  std::string recipe = fmt::format(
      "# Makes a model of {} of the {} blocks of the original. Written by shiftrt {}.\n"
      "#   mergekit-yaml {} OUTPUT\nslices:\n",
      job.plan.blocks(), original.layers, SHIFTRT_VERSION, kRecipe);
  for (const auto& [begin, end] : Slices(original.kept))
    recipe += fmt::format("  - sources:\n      - model: {}\n        layer_range: [{}, {}]\n", name, begin, end);
  recipe +=
      fmt::format("merge_method: passthrough\ndtype: {}\n", Name(ExpandedType(job.model.weights->embedding.dtype)));
  out.Create(kRecipe).Write(recipe);
  out.Create(kScript).Write(fmt::format(
      "#!/bin/sh\n# Removes the same blocks from a GGUF file of the original, with llama.cpp. Written by "
      "shiftrt {}.\n#   sh {} ORIGINAL.gguf PRUNED.gguf [TYPE]    TYPE as llama-quantize takes it; COPY: as "
      "it is\n# llama-quantize has --prune-layers since June 2025 (llama.cpp's pull request 13037). Versions with "
      "llama.cpp's "
      "issue 27976\n# write files that do not load: load PRUNED.gguf before you rely on it. `shiftrt export --format "
      "gguf` writes the\n# same model without llama.cpp.\n"
      "llama-quantize --help 2>&1 | grep -q -e --prune-layers ||\n"
      "  {{ echo \"$0: this llama-quantize has no --prune-layers\" >&2; exit 1; }}\n"
      "exec llama-quantize --prune-layers {} \"$1\" \"$2\" \"${{3:-COPY}}\"\n",
      SHIFTRT_VERSION, kScript, fmt::join(original.removed, ",")));
  out.Commit();
  // transformers 5.23 adds layer_types to the config of qwen2 and qwen3, and mergekit 0.1.5 does not shorten that list.
  const std::string& family = job.model.weights->config.family;
  if (family != "qwen2" && family != "qwen3" && !BaseConfig(job.model.directory).contains("layer_types")) return {};
  return {
      "mergekit does not shorten the list layer_types that such a model's config.json has, and transformers 5 refuses "
      "the "
      "result. The format hf writes the same model without mergekit."};
}

// For every match of a pattern in `text`, its groups as numbers.
std::vector<std::vector<int64_t>> Numbers(const std::string& text, const std::string& pattern) {
  std::vector<std::vector<int64_t>> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end; ++match)
    for (found.emplace_back(); found.back().size() + 1 < match->size();)
      found.back().push_back(std::stoll((*match)[found.back().size() + 1]));
  return found;
}

// A recipe cannot be run here. The check is that the layers which the recipe and the script name make up the plan.
void VerifyMergekit(const ExportJob& job, const fs::path& directory) {
  const Original original = OriginalOf(job);
  std::vector<int64_t> kept, removed;
  for (const std::vector<int64_t>& range : Numbers(ReadFile(directory / kRecipe), R"(layer_range: \[(\d+), (\d+)\])"))
    for (int64_t layer = range[0]; layer < range[1]; ++layer) kept.push_back(layer);
  const std::string script = ReadFile(directory / kScript);
  for (const std::vector<int64_t>& layer : Numbers(script.substr(script.find("exec ")), R"([ ,](\d+)\b)"))
    removed.push_back(layer[0]);
  Check(kept == original.kept, "{}: names the layers {}, expected {}", (directory / kRecipe).string(),
        fmt::join(kept, ", "), fmt::join(original.kept, ", "));
  Check(removed == original.removed, "{}: names the layers {}, expected {}", (directory / kScript).string(),
        fmt::join(removed, ", "), fmt::join(original.removed, ", "));
}

}  // namespace

const ExportFormat& MergekitFormat() {
  static const ExportFormat format = {
      .name = "mergekit",
      .summary = "recipes that prune the original: slices for mergekit, and a line for llama.cpp's llama-quantize",
      .opened_by = "mergekit, and llama-quantize of llama.cpp, from the original",
      .holds = "correction none",
      .why_no_model = WhyNoModelOfMergekit,
      .why_not = WhyNotMergekit,
      .write = WriteMergekit,
      .verify = VerifyMergekit,
  };
  return format;
}

}  // namespace shiftrt
