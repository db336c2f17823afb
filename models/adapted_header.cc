// SPDX-License-Identifier: Apache-2.0
#include "models/adapted_header.h"

#include <algorithm>
#include <cstdint>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "types/part_json.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Reads a list of ascending layers of the original model.
std::vector<int64_t> LayerList(const Json& value, int64_t layers, const std::string& name, const char* what) {
  Check(value.is_array(), "{}: {} {} is not a list of layers", name, what, Shown(value));
  std::vector<int64_t> out;
  for (const Json& layer : value) {
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(layers),
          "{}: {} {} is not a layer of a model of {}", name, what, Shown(layer), layers);
    Check(out.empty() || layer.get<int64_t>() > out.back(), "{}: {} {} is not ascending", name, what, Shown(value));
    out.push_back(layer.get<int64_t>());
  }
  return out;
}

// The halves of a block that run: both, unless the stage names one.
Halves ReadHalves(const Json& stage, int version, const std::string& name) {
  if (!stage.contains("halves")) return Halves::kBoth;
  const Json& value = stage["halves"];
  Check(version >= kHalvesVersion, "{}: stage {} has halves, which a file of version {} cannot have", name,
        Shown(stage), version);
  const auto halves = value.is_string() ? ParseHalves(value.get_ref<const std::string&>()) : std::nullopt;
  Check(halves.has_value(), "{}: halves {} of a block, expected \"attention\", \"mlp\" or \"both\"", name,
        Shown(value));
  return *halves;
}

// True if the plan runs the layer with tensors of its own.
bool RunsWithOwnTensors(const AdaptedHeader& header, const BlockPart& part) {
  const Json& plan = header.json["plan"];
  return std::any_of(plan.begin(), plan.end(), [&](const Json& stage) {
    return stage.is_object() && stage.contains("own") && stage.value("block", Json()) == part.layer;
  });
}

}  // namespace

AdaptedHeader ReadHeader(const fs::path& file) {
  const std::string name = file.string();
  AdaptedHeader header;
  header.json = ParseJson(ReadFile(file, 1 << 28), name);
  const Json& json = header.json;
  const Json version = json.is_object() ? json.value("version", Json()) : Json();
  Check(version.is_number_unsigned() && version >= kFirstVersion && version <= kLastVersion,
        "{}: version {}, expected {} to {}", name, Shown(version), kFirstVersion, kLastVersion);
  for (const char* key : {"base", "fingerprint"})
    Check(json.contains(key) && json[key].is_string(), "{}: {} is missing", name, key);
  for (const char* key : {"plan", "removed"}) Check(json.contains(key), "{}: {} is missing", name, key);
  Check(json.contains("layers") && json["layers"].is_number_unsigned() && json["layers"].get<uint64_t>() <= INT64_MAX,
        "{}: layers is missing", name);
  header.version = version.get<int>();
  header.base = json["base"].get<std::string>();
  header.fingerprint = json["fingerprint"].get<std::string>();
  header.layers = json["layers"].get<int64_t>();
  header.removed = LayerList(json["removed"], header.layers, name, "removed");
  Check(header.standalone() || (fs::path(header.base).is_absolute() && header.base.find('\0') == std::string::npos),
        "{}: base is {}, expected an absolute path or \"{}\"", name, Shown(json["base"]), kStandalone);
  const Json renumbered = json.value(kRenumbered, Json(false));
  Check(renumbered.is_boolean(), "{}: {} is {}, expected true or false", name, kRenumbered, Shown(renumbered));
  Check(renumbered == false || header.version >= kRenumberedVersion,
        "{}: it is {}, which a file of version {} cannot be", name, kRenumbered, header.version);
  header.renumbered = header.standalone() || renumbered == true;
  return header;
}

BlockStage ReadBlock(const Json& stage, int64_t last, const AdaptedHeader& header, int64_t layers,
                     const std::string& name) {
  const Json& block = stage["block"];
  Check(block.is_number_unsigned() && block.get<uint64_t>() < static_cast<uint64_t>(layers) &&
            block.get<int64_t>() > last,
        "{}: block {} after block {} in a model of {} layers", name, Shown(block), last, layers);
  const auto layer = block.get<int64_t>();
  Check(header.renumbered || !std::binary_search(header.removed.begin(), header.removed.end(), layer),
        "{}: block {} is among the removed layers", name, layer);
  return BlockStage{layer, ReadHalves(stage, header.version, name)};
}

int64_t ReadUnits(const Json& stage, const AdaptedHeader& header, const std::string& name) {
  if (!stage.contains("units")) return 0;
  constexpr int64_t kMostUnits = int64_t{1} << 31;
  const Json& units = stage["units"];
  Check(header.version >= kUnitsVersion, "{}: stage {} has units, which a file of version {} cannot have", name,
        Shown(stage), header.version);
  Check(units.is_number_unsigned() && units > 0 && units <= kMostUnits, "{}: units {} of an MLP, expected 1 to {}",
        name, Shown(units), kMostUnits);
  return units.get<int64_t>();
}

std::vector<BlockPart> ReadParts(const Json& value, const AdaptedHeader& header, const std::string& name) {
  Check(value.is_array() && !value.empty(), "{}: adapter {} is not a list of layers", name, Shown(value));
  std::vector<BlockPart> parts;
  for (const Json& one : value) {
    try {
      parts.push_back(one.get<BlockPart>());
    } catch (const Error& error) {
      Fail("{}: adapter {}: {}", name, Shown(value), error.what());
    }
    const BlockPart& part = parts.back();
    Check(part.layer < header.layers, "{}: adapter {} is not a layer of a model of {}", name, Shown(one),
          header.layers);
    Check(parts.size() == 1 || part.begin() >= parts[parts.size() - 2].end(), "{}: adapter {} is not ascending", name,
          Shown(value));
    const bool gone = std::binary_search(header.removed.begin(), header.removed.end(), part.layer);
    // A block that was trained in the place of removed ones runs after the adapter that stands for them.
    const bool runs_again = part.halves == Halves::kBoth && (header.renumbered || RunsWithOwnTensors(header, part));
    Check(gone == (part.halves == Halves::kBoth) || runs_again, "{}: adapter {} does not stand for removed layers",
          name, Shown(value));
    Check(part.halves == Halves::kBoth || header.version >= kHalvesVersion,
          "{}: adapter {} stands for half a block, which a file of version {} cannot have", name, Shown(value),
          header.version);
  }
  return parts;
}

std::set<std::string> ReadNames(const Json& object, const char* key, const std::set<std::string>& known,
                                const AdaptedHeader& header, const std::string& file) {
  std::set<std::string> names;
  if (!object.contains(key)) return names;
  const Json& list = object[key];
  Check(header.version >= kOwnVersion, "{}: it has {}, which a file of version {} cannot have", file, key,
        header.version);
  Check(list.is_array() && !list.empty(), "{}: {} {} is not a list of tensors", file, key, Shown(list));
  for (const Json& name : list) {
    Check(name.is_string() && known.contains(name.get<std::string>()), "{}: {} {} is not a tensor there (known: {})",
          file, key, Shown(name), fmt::join(known, ", "));
    Check(names.insert(name.get<std::string>()).second, "{}: {} {} is named twice", file, key, Shown(name));
  }
  return names;
}

std::string OwnName(int64_t layer, const BlockTensor& row) {
  return fmt::format("model.layers.{}.{}", layer, row.name);
}

}  // namespace shiftrt
