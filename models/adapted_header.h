// SPDX-License-Identifier: Apache-2.0
// Reads the fields of shiftrt.json, which describes the plan of a directory that --save made (docs/dev/formats.md). The
// tensors that it names are read by models/adapted_plan.h.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/block_tensors.h"
#include "models/plan.h"

namespace shiftrt {

// A file has the lowest version that can describe its plan, so that older programs refuse only files that they would
// misread: version 2 added half blocks, version 3 tensors of the plan's own and LoRA factors, version 4
// adapters that read the normed stream, version 5 quantised tensors of the plan's own, which are in a GGUF file,
// version 6 MLPs whose number of units is not that of the configuration, and version 7 a base model that lacks the
// removed blocks itself.
inline constexpr int kFirstVersion = 1, kHalvesVersion = 2, kOwnVersion = 3, kNormsVersion = 4, kQuantisedVersion = 5,
                     kUnitsVersion = 6, kRenumberedVersion = 7, kLastVersion = kRenumberedVersion;
inline constexpr const char *kAdapterTensors = "adapters.safetensors", *kOwnTensors = "own.safetensors",
                            *kOwnQuantised = "own.gguf";
inline constexpr const char *kFinalNorm = "model.norm.weight", *kFinalNormBias = "model.norm.bias",
                            *kHead = "lm_head.weight", *kTable = "model.embed_tokens.weight";
inline constexpr const char* kStandalone = ".";           // as base: the directory has weights of its own
inline constexpr const char* kRenumbered = "renumbered";  // true: the base model lacks the removed blocks

// shiftrt.json with the types of its fields checked, all but the plan's.
struct AdaptedHeader {  // NOLINT(bugprone-exception-escape): JSON is moved without an exception
  std::string base, fingerprint;
  int version = kFirstVersion;
  int64_t layers = 0;  // layers of the original model
  std::vector<int64_t> removed;
  // True if the weights have the kept blocks alone, so that the plan's blocks count from 0. What adapters replace, and
  // `removed`, count as the original does.
  bool renumbered = false;
  nlohmann::json json;

  bool standalone() const { return base == kStandalone; }
};

// Throws Error for a file that is missing or malformed, and for a version that this program does not know.
AdaptedHeader ReadHeader(const std::filesystem::path& file);

// The functions below read a part of the plan. `name` is that of the file, for errors. They throw Error for what the
// header's version cannot have, and for layers and tensors that the model does not have.

// Reads a block of the plan, without its own tensors; `last` is the layer of the block before it, or -1, and `layers`
// the number of layers of the model.
BlockStage ReadBlock(const nlohmann::json& stage, int64_t last, const AdaptedHeader& header, int64_t layers,
                     const std::string& name);

// Reads the units of a block's MLP; 0 if the stage does not say, and they are those of the configuration.
int64_t ReadUnits(const nlohmann::json& stage, const AdaptedHeader& header, const std::string& name);

// Reads the parts that an adapter replaces, in the order of depth.
std::vector<BlockPart> ReadParts(const nlohmann::json& value, const AdaptedHeader& header, const std::string& name);

// Reads a list of names of tensors, which must be among `known`. Empty if `object` has no `key`.
std::set<std::string> ReadNames(const nlohmann::json& object, const char* key, const std::set<std::string>& known,
                                const AdaptedHeader& header, const std::string& name);

// The name of a block's own tensor in its file.
std::string OwnName(int64_t layer, const BlockTensor& row);

}  // namespace shiftrt
