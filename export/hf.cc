// SPDX-License-Identifier: Apache-2.0
// Writes a Hugging Face directory that transformers, vLLM, TGI, mergekit and lm-eval load without code of shiftrt: one
// of the family's own architecture or, for a plan of more than whole blocks, a Llama (export/llama_layers.h).
#include "export/gguf_items.h"
#include "export/hf_directory.h"
#include "export/llama_layers.h"
#include "export/read_back.h"
#include "models/config.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

// The layers as other programs run them may differ by this share of the largest logit from the plan.
constexpr double kLlamaTolerance = 0.02;

std::string WhyNotHf(const Model& model, const DepthPlan& plan) {
  if (NeedsLayers(*model.weights, plan))
    if (std::string why = WhyNoLlamaLayers(model.weights->config); !why.empty()) return why;
  return WhyNoHfDirectory(model, plan);
}

std::vector<std::string> WriteHf(const ExportJob& job, const std::filesystem::path& directory) {
  HfExtras extras;
  LlamaCheckpoint llama;
  if (NeedsLayers(*job.model.weights, job.plan)) {
    llama = MakeLlamaCheckpoint(job);
    extras.config = std::move(llama.config);
    extras.tensors = std::move(llama.tensors);
    extras.notes = std::move(llama.notes);
    extras.all_tensors = true;
  }
  extras.usage =
      "A stock checkpoint: every program that loads the original's architecture loads it.\n\n"
      "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
      "model = AutoModelForCausalLM.from_pretrained(\"PATH\")\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"PATH\")\n```\n";
  return WriteHfDirectory(job, std::move(extras), directory);
}

// Reads the files as shiftrt does, and the layers of a Llama also as other programs do.
void VerifyHf(const ExportJob& job, const std::filesystem::path& directory) {
  VerifyHfDirectory(job, directory);
  if (!NeedsLayers(*job.model.weights, job.plan)) return;
  const std::string file = (directory / "config.json").string();
  const ModelConfig config = ConfigFromJson(ParseJson(ReadFile(file), file), file);
  Model plain;
  plain.weights = LoadWeights(directory, config, {});
  plain.plan = DepthPlan::Original(config.layers);
  const bool expanded = IsQuantised(TensorsOf(*job.model.weights, *job.plan.Blocks().front()).AnyUp().dtype);
  CheckSameLogits(job, plain, directory, expanded ? kRoundedTolerance : kLlamaTolerance);
}

std::string LosesInHf(const DepthPlan& plan) {
  const int64_t empty = EmptyPlaces(plan);
  return empty == 0 ? "" : fmt::format("time and memory: zeros fill {} of the places of attentions and MLPs", empty);
}

}  // namespace

const ExportFormat& HfFormat() {
  static const ExportFormat format = {
      .name = "hf",
      .summary =
          "directory that transformers, vLLM, TGI, mergekit and lm-eval load; half blocks, MLPs of any width and "
          "adapters on the normed stream (--recipe portable) for Llama, Mistral and Qwen 2, as a Llama",
      .normed_adapters = true,
      .own_tensors = true,
      .half_blocks = true,
      .other_units = true,
      .opened_by = "transformers, vLLM, TGI, mergekit and lm-eval, without code of shiftrt",
      .holds = "recipe stock",
      .why_no_parts = WhyNoLlamaLayers,
      .why_not = WhyNotHf,
      .write = WriteHf,
      .verify = VerifyHf,
      .loses = LosesInHf,
  };
  return format;
}

}  // namespace shiftrt
