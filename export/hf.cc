// SPDX-License-Identifier: Apache-2.0
// A Hugging Face directory of the family's own architecture: what transformers, vLLM, TGI, mergekit and lm-eval load
// without code of ours.
#include "export/formats.h"
#include "export/model_card.h"
#include "export/read_back.h"
#include "models/block_tensors.h"
#include "models/plan_checkpoint.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// A tensor that a block has of its own, but that the family's architecture lacks, would be left out.
std::string WhyNotHf(const Model& model, const DepthPlan& plan) {
  const ModelConfig& config = model.weights->config;
  for (const BlockStage* block : plan.Blocks())
    for (const BlockTensor& row : BlockTensors())
      if (!(TensorsOf(*model.weights, *block).*row.member).empty() && row.Shape(config).empty())
        return fmt::format("block {} has a {}, which the architecture of {} has no place for", block->layer, row.name,
                           config.family);
  return "";
}

std::vector<std::string> WriteHf(const ExportJob& job, const fs::path& directory) {
  AtomicDirectory out(directory);
  std::vector<std::string> resized, notes;
  const nlohmann::json config = PlanConfig(job.model, job.plan, &resized);
  for (const std::string& key : resized)
    notes.push_back(
        fmt::format("{} of config.json has one entry per layer, and those of removed layers were taken out.", key));
  WriteCheckpoint(StoredTensors(KeptWeights(*job.model.weights, job.plan)), job.options.shard_bytes, out, job.progress);
  out.Create("config.json").Write(config.dump(2) + "\n");
  CopyCompanions(job.model, out);
  const std::string usage =
      "A stock checkpoint: every program that loads the original's architecture loads it.\n\n"
      "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
      "model = AutoModelForCausalLM.from_pretrained(\"PATH\")\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"PATH\")\n```\n";
  out.Create("README.md").Write(ModelCard(job, usage, notes));
  out.Commit();
  return notes;
}

void VerifyHf(const ExportJob& job, const fs::path& directory) {
  CheckSameLogits(job, OpenModel(directory.string()), directory);
}

}  // namespace

const ExportFormat& HfFormat() {
  static const ExportFormat format = {
      .name = "hf",
      .summary = "directory that transformers, vLLM, TGI, mergekit and lm-eval load; no adapters",
      .adapters = false,
      .q8_0 = false,
      .why_not = WhyNotHf,
      .write = WriteHf,
      .verify = VerifyHf,
  };
  return format;
}

}  // namespace shiftrt
