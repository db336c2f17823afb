// SPDX-License-Identifier: Apache-2.0
#include "models/adapted.h"

#include <utility>
#include <vector>

#include "hub/cache.h"
#include "models/adapted_header.h"
#include "models/adapted_plan.h"
#include "models/hf_lra.h"
#include "models/plan_checkpoint.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/gguf.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The blocks of a saved plan, with the model's tensors.
DepthPlan KeptBlocks(const AdaptedHeader& header, int64_t layers, const std::string& name) {
  DepthPlan plan;
  int64_t last = -1;
  for (const Json& stage : header.json["plan"]) {
    if (!stage.is_object() || !stage.contains("block")) continue;
    plan.stages.emplace_back(ReadBlock(stage, last, header, layers, name));
    last = plan.stages.back().block().layer;
  }
  return plan;
}

void CheckFingerprint(const AdaptedHeader& header, const Weights& weights, const fs::path& file, const fs::path& base) {
  const std::string found = weights.Fingerprint();
  Check(found == header.fingerprint, "{}: made from a model with fingerprint {}, but {} has {}", file.string(),
        header.fingerprint, base.string(), found);
}

DepthPlan MergeSaved(const Weights& weights, const AdaptedPlan& read, const fs::path& file) {
  weights.RequireWhole(fmt::format("{}: merging its LoRA factors", file.string()));
  return MergeLora(weights, read.plan, *read.lora);
}

}  // namespace

std::string MissingOfSaved(const fs::path& directory) {
  const AdaptedHeader header = ReadHeader(directory / kAdaptedFile);
  if (header.standalone())
    if (std::string missing = MissingOfModel(directory); !missing.empty()) return missing;
  std::vector<std::string> files = {kAdapterTensors};
  if (const Json& sums = header.json.value("checksums", Json()); sums.is_object()) {
    for (const char* own : {kOwnTensors, kOwnQuantised})
      if (sums.contains(own)) files.emplace_back(own);
    if (sums.contains(kLoraDirectory))
      for (const char* file : {kLoraConfig, kLoraTensors}) files.push_back(fmt::format("{}/{}", kLoraDirectory, file));
  }
  for (const std::string& file : files)
    if (!Exists(directory / file)) return file;
  return "";
}

std::vector<int64_t> StoredUnits(const fs::path& directory) {
  const fs::path file = directory / kAdaptedFile;
  std::vector<int64_t> units;
  if (!Exists(file)) return units;
  const AdaptedHeader header = ReadHeader(file);
  if (!header.standalone() || header.version < kUnitsVersion) return units;
  for (const Json& stage : header.json["plan"])
    if (stage.is_object() && stage.contains("block")) units.push_back(ReadUnits(stage, header, file.string()));
  return units;
}

fs::path AdaptedBase(const fs::path& directory) {
  const AdaptedHeader header = ReadHeader(directory / kAdaptedFile);
  return header.standalone() ? directory : fs::path(header.base);
}

bool IsSavedFrom(const fs::path& directory, const Weights& weights) {
  std::error_code error;
  return fs::exists(directory / kAdaptedFile, error) &&
         ReadHeader(directory / kAdaptedFile).fingerprint == weights.Fingerprint();
}

DepthPlan OpenSavedPlan(const fs::path& directory, const Weights& weights) {
  const fs::path file = directory / kAdaptedFile;
  const AdaptedHeader header = ReadHeader(file);
  CheckFingerprint(header, weights, file, "the model that is open");
  AdaptedPlan read = ReadPlan(header, directory, weights, {});
  return read.lora ? MergeSaved(weights, read, file) : std::move(read.plan);
}

bool ReplaceProvenance(const fs::path& directory, const Provenance& before, const Provenance& after) {
  const DirectoryLock lock(directory);
  Json json = ReadHeader(directory / kAdaptedFile).json;
  if (json.value("provenance", Json()).dump() != ProvenanceJson(before).dump()) return false;
  json["provenance"] = ProvenanceJson(after);
  WriteFile(directory / kAdaptedFile, json.dump(2) + "\n");
  return true;
}

Model OpenAdapted(const fs::path& directory, const LoadOptions& options) {
  const fs::path file = directory / kAdaptedFile;
  const AdaptedHeader header = ReadHeader(file);
  Model model;
  model.directory = header.standalone() ? directory : fs::path(header.base);
  std::error_code error;
  Check(IsGguf(model.directory) || fs::exists(model.directory / "config.json", error),
        "{}: its base model {} is not there; put it back, or save with the weights to be independent of it",
        file.string(), model.directory.string());
  const std::string config = (IsGguf(model.directory) ? model.directory : model.directory / "config.json").string();
  const ModelConfig base = ConfigFromJson(BaseConfig(model.directory), config);
  LoadOptions with_plan = IsHfLra(model.directory) ? WithHfLra(model.directory, options) : options;
  if (options.split.processes > 1)
    with_plan.split.plan = std::make_shared<const DepthPlan>(KeptBlocks(header, base.layers, file.string()));
  if (std::vector<int64_t> units = StoredUnits(model.directory); !units.empty()) with_plan.mlp_units = std::move(units);
  model.weights = LoadWeights(model.directory, base, with_plan);
  CheckFingerprint(header, *model.weights, file, model.directory);
  AdaptedPlan read = ReadPlan(header, directory, *model.weights, options);
  model.plan = read.plan;
  if (read.lora) {
    model.plan = MergeSaved(*model.weights, read, file);
    model.unmerged = std::move(read.plan);
    model.lora = std::move(read.lora);
  }
  model.removed = header.removed;
  model.renumbered = header.renumbered && !model.plan.Adapters().empty();
  model.provenance = ReadProvenance(header.json.value("provenance", Json()));
  return model;
}

}  // namespace shiftrt
