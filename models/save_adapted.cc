// SPDX-License-Identifier: Apache-2.0
// Writes the directories that --save makes (docs/dev/formats.md).
#include <algorithm>
#include <utility>

#include "models/adapted.h"
#include "models/adapted_header.h"
#include "models/lora.h"
#include "models/plan_checkpoint.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/gguf_writer.h"
#include "runtime/safetensors.h"
#include "types/part_json.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TensorView View(const Matrix<float>& m, bool vector = false) {
  return {m.data(), DType::kFloat32,
          vector ? std::vector<int64_t>{m.cols()} : std::vector<int64_t>{m.rows(), m.cols()}};
}

// The plan as shiftrt.json lists it, with the tensors of its adapters and those that replace the model's.
struct SavedPlan {
  int version = kFirstVersion;
  Json stages = Json::array(), output = Json::array();
  std::vector<NamedTensor> adapters, own, quantised;  // the own tensors, by whether they are quantised

  void AddOwn(const std::string& name, const TensorView& tensor) {
    if (!IsQuantised(tensor.dtype)) return own.push_back({name, tensor});
    quantised.push_back({name, tensor});
    version = kQuantisedVersion;
  }
};

// The names of the tensors of `block` that differ from the model's; the tensors are added to `saved`.
Json OwnTensors(const Weights& weights, const BlockStage& block, SavedPlan& saved) {
  Json names = Json::array();
  if (!block.own) return names;
  for (const BlockTensor* row : AllTensors(ConfigOfBlock(weights.config, block.layer, 0))) {
    const TensorView& tensor = row->In(*block.own);
    if (tensor.data == row->In(weights.blocks[block.layer]).data) continue;
    names.push_back(row->name);
    saved.AddOwn(OwnName(block.layer, *row), tensor);
  }
  return names;
}

// Describes the plan for shiftrt.json. With `whole`, a checkpoint with the plan's tensors is written too, in which the
// kept blocks count from 0.
SavedPlan Describe(const Weights& weights, const DepthPlan& plan, const Lora* lora, bool whole) {
  SavedPlan saved;
  const auto list = [&](Json& object, const char* key, const Json& names) {
    if (names.empty()) return;
    object[key] = names;
    saved.version = std::max(saved.version, kOwnVersion);
  };
  int64_t block = 0, site = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& kept) {
          Json described = {{"block", whole ? block++ : kept.layer}};
          if (kept.halves != Halves::kBoth) {
            described["halves"] = Name(kept.halves);
            saved.version = std::max(saved.version, kHalvesVersion);
          }
          const BlockWeights& tensors = TensorsOf(weights, kept);
          // A checkpoint has the tensors of a half that does not run, too.
          const int64_t units = MlpUnits(tensors),
                        of_base = whole ? weights.config.intermediate : MlpUnits(weights.blocks[kept.layer]);
          if (units > 0 && units != of_base) {
            described["units"] = units;
            saved.version = std::max(saved.version, kUnitsVersion);
          }
          if (!whole) list(described, "own", OwnTensors(weights, kept, saved));
          Json changed = Json::array();
          for (const LoraFactors& factors : lora != nullptr ? std::span(lora->factors) : std::span<const LoraFactors>())
            if (factors.layer == kept.layer) changed.push_back(factors.tensor->name);
          list(described, "lora", changed);
          saved.stages.push_back(std::move(described));
        },
        [&](const AdapterStage& adapter) {
          saved.stages.push_back({{"adapter", adapter.parts}});
          const std::string prefix = fmt::format("site.{}.", site++);
          if (adapter.lra->low_rank()) {
            saved.adapters.push_back({prefix + "P", View(adapter.lra->p)});
            saved.adapters.push_back({prefix + "Q", View(adapter.lra->q)});
          } else {
            saved.adapters.push_back({prefix + "A", View(adapter.lra->a)});
          }
          saved.adapters.push_back({prefix + "b", View(adapter.lra->b, /*vector=*/true)});
          if (!adapter.lra->normed()) return;
          saved.adapters.push_back({prefix + "norm", View(adapter.lra->norm, /*vector=*/true)});
          saved.version = std::max(saved.version, kNormsVersion);
        });
  }
  if (whole || !plan.output) return saved;
  const auto add = [&](const char* name, const TensorView& tensor, const TensorView& of_model) {
    if (tensor.data == of_model.data) return;
    saved.output.push_back(name);
    saved.AddOwn(name, tensor);
    saved.version = std::max(saved.version, kOwnVersion);
  };
  add(kFinalNorm, plan.output->final_norm, weights.final_norm);
  add(kFinalNormBias, plan.output->final_norm_bias, weights.final_norm_bias);
  add(kHead, plan.output->head, weights.head);
  const TensorView& table = plan.output->table;
  if (table.empty()) return saved;
  if (table.data != plan.output->head.data) {
    add(kTable, table, weights.embedding);
  } else {
    saved.output.push_back(kTable);  // the head's tensor is the table's
  }
  return saved;
}

void WriteQuantised(AtomicFile& file, const std::vector<NamedTensor>& tensors) {
  GgufWriter writer;
  writer.AddText("general.architecture", "shiftrt");
  for (const NamedTensor& tensor : tensors)
    writer.AddTensor(tensor.name, tensor.tensor.shape, BlockTypeOf(tensor.tensor.dtype));
  file.Write(writer.header());
  for (const NamedTensor& tensor : tensors) {
    const int64_t bytes = tensor.tensor.bytes();
    file.Write({static_cast<const std::byte*>(tensor.tensor.data), static_cast<size_t>(bytes)});
    file.Write(GgufWriter::Padding(bytes));
  }
}

// Throws Error for a block whose set of tensors is not that of the family: when the file is read, it could not be told
// from a mistake. Without `whole`, the tensors of a half that does not run are not written, and may be missing.
void CheckPlaces(const Weights& weights, const DepthPlan& plan, bool whole, const fs::path& directory) {
  for (const BlockStage* block : plan.Blocks()) {
    const ModelConfig of_block = ConfigOfBlock(weights.config, block->layer, 0);
    for (const BlockTensor& row : BlockTensors())
      if (whole || Reads(block->halves, row))
        Check((TensorsOf(weights, *block).*row.member).empty() == row.Shape(of_block).empty(),
              "{}: block {} has {} {}, unlike the blocks of the family {}", directory.string(), block->layer,
              row.Shape(of_block).empty() ? "a" : "no", row.name, weights.config.family);
  }
}

}  // namespace

void SaveAdapted(const Model& model, const DepthPlan& plan, const Provenance& provenance, bool with_weights,
                 const fs::path& directory, const Lora* lora) {
  const Weights& weights = *model.weights;
  AtomicDirectory out(directory);
  std::error_code none;
  Check(!Exists(directory / "config.json") || !fs::equivalent(directory, model.directory, none),
        "{}: this is the model itself; save somewhere else", directory.string());
  Check(!with_weights || plan.blocks() > 0, "{}: a model without blocks cannot be saved with its weights",
        directory.string());
  CheckPlaces(weights, plan, with_weights, directory);
  std::string fingerprint;
  if (with_weights) {
    const Weights kept = KeptWeights(weights, plan);
    NoProgress quiet;
    WriteCheckpoint(StoredTensors(kept), kOneFile, out, quiet);
    const Json config = PlanConfig(model, plan);
    const std::vector<const BlockStage*> blocks = plan.Blocks();
    const bool alike = std::none_of(blocks.begin(), blocks.end(),
                                    [&](const BlockStage* block) { return HasOtherUnits(weights, *block); });
    const bool all = IsStock(plan) && alike && lora == nullptr;
    out.Create("config.json").Write((all ? config : Marked(config)).dump(2) + "\n");
    const std::string without_tokenizer = CopyCompanions(model, out);
    Check(without_tokenizer.empty(), "{}: save without the weights, or export the model: {}", directory.string(),
          without_tokenizer);
    fingerprint = kept.Fingerprint();
  } else {
    fingerprint = weights.Fingerprint();
  }
  const std::string base = fs::absolute(model.directory).lexically_normal().string();
  const SavedPlan saved = Describe(weights, plan, lora, with_weights);
  WriteSafetensors(out.Create(kAdapterTensors), saved.adapters, {{"format", "shiftrt"}});
  if (!saved.own.empty()) WriteSafetensors(out.Create(kOwnTensors), saved.own, {{"format", "shiftrt"}});
  if (!saved.quantised.empty()) WriteQuantised(out.Create(kOwnQuantised), saved.quantised);
  if (lora != nullptr)
    WriteLora(*lora, weights.config, plan, plan == DepthPlan::Original(weights.config.layers) ? base : "", out);
  // Files of an earlier save would be taken for parts of this one.
  if (Exists(directory / kAdaptedFile))
    for (const std::string& name :
         {std::string("config.json"), std::string("model.safetensors"), std::string(kOwnTensors),
          std::string(kOwnQuantised), std::string(kLoraDirectory) + "/" + kLoraTensors,
          std::string(kLoraDirectory) + "/" + kLoraConfig})
      out.Remove(name);
  // Layers count as the original does, whether or not the weights have them all.
  const std::vector<int64_t> removed = model.renumbered ? model.removed : plan.RemovedLayers(weights.config.layers);
  const int64_t layers = model.renumbered ? plan.blocks() + std::ssize(removed) : weights.config.layers;
  const bool renumbered = model.renumbered && !with_weights;
  // This file is written last, so that a directory that has it is complete. A directory with its own weights names
  // itself as the base.
  Json json = {{"version", renumbered ? kRenumberedVersion : saved.version},
               {"base", with_weights ? kStandalone : base},
               {"fingerprint", fingerprint},
               {"layers", layers},
               {"removed", removed},
               {"plan", saved.stages},
               {"provenance", ProvenanceJson(provenance)}};
  if (renumbered) json[kRenumbered] = true;
  if (!saved.output.empty()) json["output"] = saved.output;
  // It is created as an object: if memory runs out while a null becomes an object, it is left half made.
  Json checksums = Json::object();
  checksums[kAdapterTensors] = ChecksumOf("", saved.adapters);
  if (!saved.own.empty()) checksums[kOwnTensors] = ChecksumOf("", saved.own);
  if (!saved.quantised.empty()) checksums[kOwnQuantised] = ChecksumOf("", saved.quantised);
  if (lora != nullptr) checksums[kLoraDirectory] = Checksum(*lora);
  json["checksums"] = std::move(checksums);
  out.Create(kAdaptedFile).Write(json.dump(2) + "\n");
  out.Commit();
}

}  // namespace shiftrt
