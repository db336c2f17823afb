// SPDX-License-Identifier: Apache-2.0
#include "export/hf_directory.h"

#include "export/model_card.h"
#include "export/read_back.h"
#include "models/block_tensors.h"
#include "models/gguf.h"
#include "runtime/check.h"
#include "runtime/gguf.h"

namespace shiftrt {

std::string WhyNoHfDirectory(const Model& model, const DepthPlan& plan) {
  for (const BlockStage* block : plan.Blocks()) {
    const ModelConfig config = ConfigOfBlock(model.weights->config, block->layer, 0);
    for (const BlockTensor& row : BlockTensors())
      if (!(TensorsOf(*model.weights, *block).*row.member).empty() && row.Shape(config).empty())
        return fmt::format("block {} has a {}, which the architecture of {} has no place for", block->layer, row.name,
                           config.family);
  }
  return "";
}

namespace {

// A GGUF file has no generation_config.json, from which transformers takes the tokens that end a reply: its text, or
// empty if the configuration has no such tokens.
std::string GenerationConfig(const nlohmann::json& config) {
  nlohmann::json generation = nlohmann::json::object();
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (const auto found = config.find(key); found != config.end() && !found->is_null()) generation[key] = *found;
  return generation.empty() ? "" : generation.dump(2) + "\n";
}

}  // namespace

std::vector<std::string> WriteHfDirectory(const ExportJob& job, HfExtras extras,
                                          const std::filesystem::path& directory) {
  AtomicDirectory out(directory);
  std::vector<std::string> resized, notes = std::move(extras.notes);
  nlohmann::json config = PlanConfig(job.model, job.plan, &resized);
  if (!extras.config.is_null()) config = std::move(extras.config);
  for (const std::string& key : resized)
    notes.push_back(
        fmt::format("{} of config.json has one entry per layer, and those of removed layers were taken out.", key));
  if (std::string note = NoteOfQuantisation(*job.model.weights); !note.empty()) notes.push_back(std::move(note));
  std::vector<TensorOfParts> tensors;
  if (!extras.all_tensors) tensors = StoredTensors(KeptWeights(*job.model.weights, job.plan, /*running_halves=*/true));
  tensors.insert(tensors.end(), extras.tensors.begin(), extras.tensors.end());
  WriteCheckpoint(tensors, job.settings.shard_bytes, out, job.progress);
  out.Create("config.json").Write(config.dump(2) + "\n");
  if (std::string note = CopyCompanions(job.model, out); !note.empty()) notes.push_back(std::move(note));
  if (const std::string generation = GenerationConfig(config); IsGguf(job.model.directory) && !generation.empty())
    out.Create("generation_config.json").Write(generation);
  for (const auto& [name, content] : extras.files) out.Create(name).Write(content);
  out.Create("README.md").Write(ModelCard(job, extras.usage, notes));
  out.Commit();
  return notes;
}

void VerifyHfDirectory(const ExportJob& job, const std::filesystem::path& directory) {
  const bool expanded = IsQuantised(TensorsOf(*job.model.weights, *job.plan.Blocks().front()).AnyUp().dtype);
  CheckSameLogits(job, OpenModel(directory.string()), directory, expanded ? kRoundedTolerance : 0);
}

}  // namespace shiftrt
