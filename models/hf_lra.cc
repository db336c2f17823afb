// SPDX-License-Identifier: Apache-2.0
#include "models/hf_lra.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "models/hf_tensors.h"
#include "models/llama_layers_reader.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"
#include "types/part_json.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The position of an adapter: before or after a block, and its index among the adapters there.
struct Place {
  int64_t layer = 0;
  bool before = false;
  int64_t index = 0;

  const char* where() const { return before ? "before" : "after"; }
  std::string Prefix() const { return fmt::format("model.layers.{}{}{}.{}.", layer, kHfLraTensors, where(), index); }
  auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};

// Calls visit(place, adapter) for every adapter of the plan.
template <typename Visit>
void ForEachAdapter(const DepthPlan& plan, const Visit& visit) {
  Place next = {0, true, 0};
  int64_t blocks = 0;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage&) {
          next = {blocks++, false, 0};
        },
        [&](const AdapterStage& adapter) {
          visit(next, adapter);
          ++next.index;
        });
  }
}

Matrix<float> Transposed(const Matrix<float>& m) {
  Matrix<float> out(m.cols(), m.rows());
  for (int64_t i = 0; i < m.rows(); ++i)
    for (int64_t j = 0; j < m.cols(); ++j) out(j, i) = m(i, j);
  return out;
}

int64_t WrittenRank(const Lra& lra) { return std::max<int64_t>(lra.rank(), 1); }

// Takes the tensors of adapters out of the map and checks them.
class AdapterReader {
 public:
  AdapterReader(const fs::path& directory, int64_t hidden) : directory_(directory.string()), hidden_(hidden) {
    tensors_ = HfTensors(directory, files_);
    std::erase_if(tensors_, [](const auto& entry) { return entry.first.find(kHfLraTensors) == std::string::npos; });
  }

  std::shared_ptr<const Lra> Take(const std::string& prefix, const std::string& kind, int64_t rank, bool norm) {
    Lra lra;
    if (norm) lra.norm = Take(prefix + "norm.weight", {hidden_});
    if (kind == "full") {
      lra.a = Transposed(Take(prefix + "linear.weight", {hidden_, hidden_}));
      lra.b = Take(prefix + "linear.bias", {hidden_});
    } else {
      lra.p = Transposed(Take(prefix + "down.weight", {rank, hidden_}));
      lra.q = Transposed(Take(prefix + "up.weight", {hidden_, rank}));
      lra.b = Take(prefix + "up.bias", {hidden_});
    }
    return std::make_shared<const Lra>(std::move(lra));
  }
  void RefuseLeftOver() const {
    Check(tensors_.empty(), "{}: tensor {} is of no adapter in config.json", directory_,
          tensors_.empty() ? "" : tensors_.begin()->first);
  }

 private:
  Matrix<float> Take(const std::string& name, const std::vector<int64_t>& shape) {
    Matrix<float> values = FloatsOf(directory_, tensors_, name, shape);
    tensors_.erase(name);
    return values;
  }

  std::string directory_;
  int64_t hidden_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  NamedTensors tensors_;
};

// An entry of shiftrt.adapters.
struct Entry {
  std::string kind;
  int64_t rank = 0;
  bool norm = false;               // it reads the normed stream
  std::vector<BlockPart> removed;  // the blocks and halves of the original that the adapter replaces
};

// Throws Error, which begins with `what`, unless `json` is a list of layers below `layers`, ascending.
std::vector<int64_t> Layers(const Json& json, int64_t layers, const std::string& what) {
  std::vector<int64_t> out;
  Check(json.is_array(), "{} {} is not a list of layers", what, Shown(json));
  for (const Json& layer : json) {
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(layers) &&
              (out.empty() || layer.get<int64_t>() > out.back()),
          "{} {} is not an ascending list of layers below {}", what, Shown(json), layers);
    out.push_back(layer.get<int64_t>());
  }
  return out;
}

// The parts of the original model that do not run, ascending. `halves`: those of each kept block that run.
std::vector<BlockPart> RemovedParts(const std::vector<int64_t>& removed, const std::vector<Halves>& halves) {
  std::vector<int64_t> places;
  size_t block = 0;
  for (int64_t layer = 0; layer < std::ssize(halves) + std::ssize(removed); ++layer) {
    const bool gone = block == halves.size() || std::binary_search(removed.begin(), removed.end(), layer);
    const Halves runs = gone ? Halves::kBoth : halves[block++];
    if (gone || !RunsAttention(runs)) places.push_back(2 * layer);
    if (gone || !RunsMlp(runs)) places.push_back(2 * layer + 1);
  }
  return PartsAt(places);
}

// Reads the list of what an adapter replaces: some of the parts that do not run, ascending.
std::vector<BlockPart> Replaced(const Json& json, const std::vector<BlockPart>& gone, const std::string& what) {
  Check(json.is_array() && !json.empty(), "{} removed {} is not a list of layers", what, Shown(json));
  std::vector<BlockPart> parts;
  parts.reserve(json.size());
  for (const Json& one : json) {
    try {
      parts.push_back(one.get<BlockPart>());
    } catch (const Error& error) {
      Fail("{} removed {}: {}", what, Shown(json), error.what());
    }
    // A half of a layer that was removed may run again after the adapter.
    const bool any_gone = std::any_of(gone.begin(), gone.end(), [&](const BlockPart& part) {
      return part == parts.back() || (parts.back().halves == Halves::kBoth && part.layer == parts.back().layer);
    });
    Check(any_gone, "{} removed {} are not removed layers of the original", what, Shown(json));
    Check(parts.size() == 1 || parts.back().begin() >= parts[parts.size() - 2].end(),
          "{} removed {} is not an ascending list of layers", what, Shown(json));
  }
  return parts;
}

// The halves that run of each of `blocks` blocks, from the list shiftrt.half_blocks, which may be missing.
std::vector<Halves> ReadHalves(const Json& list, int64_t blocks, const std::string& file) {
  std::vector<Halves> halves(blocks, Halves::kBoth);
  if (list.is_null()) return halves;
  Check(list.is_array(), "{}: shiftrt.half_blocks is not a list", file);
  for (const Json& json : list) {
    Check(json.is_object(), "{}: half block {}: not an object", file, Shown(json));
    const Json layer = json.value("layer", Json()), runs = json.value("runs", Json());
    Check(layer.is_number_unsigned() && layer.get<uint64_t>() < static_cast<uint64_t>(blocks),
          "{}: half block {}: layer is {}, expected 0 to {}", file, Shown(json), Shown(layer), blocks - 1);
    Check(runs == Name(Halves::kAttention) || runs == Name(Halves::kMlp),
          "{}: half block {}: runs is {}, expected attention or mlp", file, Shown(json), Shown(runs));
    Halves& block = halves[layer.get<size_t>()];
    Check(block == Halves::kBoth, "{}: half block {}: a second one of this layer", file, Shown(json));
    block = *ParseHalves(runs.get_ref<const std::string&>());
  }
  return halves;
}

// `least_rank`: the smallest that an adapter may have.
std::map<Place, Entry> ReadEntries(const Json& adapters, int64_t blocks, const std::vector<BlockPart>& gone,
                                   int64_t least_rank, const std::string& file) {
  Check(adapters.is_array(), "{}: shiftrt.adapters is not a list", file);
  std::map<Place, Entry> entries;
  for (const Json& json : adapters) {
    const std::string what = fmt::format("{}: adapter {}:", file, Shown(json));
    Check(json.is_object(), "{} not an object", what);
    const auto number = [&](const char* key, int64_t low, int64_t high) {
      const Json value = json.value(key, Json());
      Check(value.is_number_integer() && value >= low && value <= high, "{} {} is {}, expected {} to {}", what, key,
            Shown(value), low, high);
      return value.get<int64_t>();
    };
    const auto word = [&](const char* key, std::string_view first, std::string_view second) {
      const Json value = json.value(key, Json());
      Check(value == first || value == second, "{} {} is {}, expected {} or {}", what, key, Shown(value), first,
            second);
      return value.get<std::string>();
    };
    const Place place = {number("layer", 0, blocks - 1), word("where", "before", "after") == "before",
                         number("index", 0, std::ssize(adapters) - 1)};
    Entry entry = {word("kind", "low-rank", "full"), 0, false, {}};
    if (entry.kind != "full") entry.rank = number("rank", least_rank, 1 << 22);
    const Json norm = json.value("norm", Json(false));
    Check(norm.is_boolean(), "{} norm is {}, expected true or false", what, Shown(norm));
    entry.norm = norm.get<bool>();
    entry.removed = Replaced(json.value("removed", Json()), gone, what);
    Check(place.index == 0 || entries.contains({place.layer, place.before, place.index - 1}),
          "{} index {} comes before index {}", what, place.index, place.index - 1);
    Check(entries.emplace(place, std::move(entry)).second, "{} a second one at this place", what);
  }
  return entries;
}

}  // namespace

TensorView AdapterTensor::View() const {
  const bool vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  return {values.data(), DType::kFloat32,
          vector ? std::vector<int64_t>{values.cols()} : std::vector<int64_t>{values.rows(), values.cols()}};
}

std::vector<AdapterTensor> HfLraTensors(const DepthPlan& plan) {
  std::vector<AdapterTensor> tensors;
  ForEachAdapter(plan, [&](const Place& place, const AdapterStage& adapter) {
    const Lra& lra = *adapter.lra;
    const std::string prefix = place.Prefix();
    if (lra.normed()) tensors.push_back({prefix + "norm.weight", lra.norm.Clone()});
    const int64_t hidden = lra.hidden(), rank = WrittenRank(lra);
    if (!lra.low_rank()) {
      tensors.push_back({prefix + "linear.weight", Transposed(lra.a)});
      tensors.push_back({prefix + "linear.bias", lra.b.Clone()});
      return;
    }
    const bool zero = lra.rank() == 0;
    tensors.push_back({prefix + "down.weight", zero ? Matrix<float>::Zeros(rank, hidden) : Transposed(lra.p)});
    tensors.push_back({prefix + "up.weight", zero ? Matrix<float>::Zeros(hidden, rank) : Transposed(lra.q)});
    tensors.push_back({prefix + "up.bias", lra.b.Clone()});
  });
  return tensors;
}

Json HfLraMark(const Weights& weights, const DepthPlan& plan, const std::vector<int64_t>& removed,
               const Provenance& provenance, bool as_llama) {
  Json adapters = Json::array();
  ForEachAdapter(plan, [&](const Place& place, const AdapterStage& adapter) {
    const Lra& lra = *adapter.lra;
    adapters.push_back({{"layer", place.layer},
                        {"where", place.where()},
                        {"index", place.index},
                        {"kind", lra.low_rank() ? "low-rank" : "full"},
                        {"rank", as_llama ? lra.rank() : WrittenRank(lra)},
                        {"removed", adapter.parts}});
    if (lra.normed()) adapters.back()["norm"] = true;
  });
  Json mark = {
      {"adapters", std::move(adapters)}, {"removed", removed}, {"provenance", ProvenanceJson(Essentials(provenance))}};
  const std::vector<const BlockStage*> blocks = plan.Blocks();
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    if (blocks[layer]->halves != Halves::kBoth)
      mark["half_blocks"].push_back({{"layer", layer}, {"runs", Name(blocks[layer]->halves)}});
  const auto other = [&](const BlockStage* block) { return HasOtherUnits(weights, *block); };
  if (std::any_of(blocks.begin(), blocks.end(), other))
    for (const BlockStage* block : blocks)
      mark["mlp_units"].push_back(RunsMlp(block->halves) ? MlpUnits(TensorsOf(weights, *block)) : 0);
  return mark;
}

bool IsHfLra(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  if (!Exists(file)) return false;
  return IsMarkedHfLra(ParseJson(ReadFile(file, kMaxConfigBytes), file.string()));
}

bool IsLlamaLayers(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  return IsHfLra(directory) && ParseJson(ReadFile(file, kMaxConfigBytes), file.string())["shiftrt"].contains(kAsLlama);
}

namespace {

// The description in the config.json of a directory.
struct Described {  // NOLINT(bugprone-exception-escape): of the JSON library
  std::string file;
  Json mark;
  ModelConfig config;            // that of the blocks
  std::vector<Halves> halves;    // what runs of each block
  std::vector<int64_t> units;    // the widths of the MLPs, or empty
  std::vector<int64_t> removed;  // layers of the original
  std::map<Place, Entry> adapters;
  std::optional<LlamaLayersReader> llama = std::nullopt;

  // The stages in order; the adapters are those that adapter(place, entry) returns.
  template <typename Adapter>
  DepthPlan Plan(const Adapter& adapter) const {
    DepthPlan plan;
    const auto take = [&](int64_t layer, bool before) {
      for (Place place = {layer, before, 0}; adapters.contains(place); ++place.index) {
        const Entry& entry = adapters.at(place);
        plan.stages.push_back(AdapterStage{entry.removed, adapter(place, entry)});
      }
    };
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      take(layer, true);
      plan.stages.push_back(BlockStage{layer, halves[layer]});
      take(layer, false);
    }
    return plan;
  }
};

// The units of each block's MLP, from the list shiftrt.mlp_units, which may be missing.
std::vector<int64_t> ReadMlpUnits(const Json& list, int64_t blocks, const std::string& file) {
  constexpr int64_t kMostUnits = int64_t{1} << 31;
  std::vector<int64_t> units;
  if (list.is_null()) return units;
  Check(list.is_array() && std::ssize(list) == blocks, "{}: shiftrt.mlp_units is no list of {} numbers", file, blocks);
  for (const Json& one : list) {
    Check(one.is_number_unsigned() && one.get<uint64_t>() <= static_cast<uint64_t>(kMostUnits),
          "{}: shiftrt.mlp_units has {}, expected 0 to {}", file, Shown(one), kMostUnits);
    units.push_back(one.get<int64_t>());
  }
  return units;
}

Described Describe(const fs::path& directory) {
  Described out;
  out.file = (directory / "config.json").string();
  const Json json = ParseJson(ReadFile(out.file, kMaxConfigBytes), out.file);
  out.mark = json.at("shiftrt");
  out.config = ConfigFromJson(ReadUnmarked(out.file), out.file);
  const int64_t blocks = out.config.layers;
  const bool as_llama = out.mark.contains(kAsLlama);
  out.halves = ReadHalves(out.mark.value("half_blocks", Json()), blocks, out.file);
  out.units = ReadMlpUnits(out.mark.value("mlp_units", Json()), blocks, out.file);
  out.removed = Layers(out.mark.value("removed", Json()), INT32_MAX, out.file + ": shiftrt.removed");
  out.adapters = ReadEntries(out.mark.value("adapters", Json()), blocks, RemovedParts(out.removed, out.halves),
                             as_llama ? 0 : 1, out.file);
  if (!as_llama) return out;
  const DepthPlan stages = out.Plan([](const Place&, const Entry&) { return std::shared_ptr<const Lra>(); });
  out.llama.emplace(directory, LlamaLayersOf(stages), out.config, ConfigFromJson(json, out.file));
  return out;
}

LoadOptions OptionsOf(const Described& described, LoadOptions options) {
  options.has_adapters = !described.llama;
  options.halves = described.halves;
  options.mlp_units = described.units;
  if (described.llama) described.llama->AddTo(options);
  return options;
}

}  // namespace

LoadOptions WithHfLra(const fs::path& directory, LoadOptions options) {
  return OptionsOf(Describe(directory), std::move(options));
}

Model OpenHfLra(const fs::path& directory, const LoadOptions& options) {
  Described described = Describe(directory);
  const ModelConfig& config = described.config;
  Model model;
  model.directory = directory;
  model.weights = LoadWeights(directory, config, OptionsOf(described, options));
  model.removed = described.removed;
  model.provenance = ReadProvenance(described.mark.value("provenance", Json()));
  if (described.llama) {
    LlamaLayersReader& llama = *described.llama;
    llama.CheckEmptyPlaces();
    int64_t adapters = 0;
    model.plan = described.Plan([&](const Place&, const Entry& entry) {
      return llama.Adapter(adapters++, entry.kind == "full", entry.rank, entry.norm);
    });
    // A part of a model keeps the units that the files have, because it has not all tensors.
    const bool whole = options.split.processes == 1 && !options.outline;
    for (Stage& stage : model.plan.stages)
      stage = stage.Visit(
          [&](const BlockStage& block) -> Stage {
            const int64_t units = described.units.empty() ? config.intermediate : described.units[block.layer];
            return whole ? llama.WithUnits(model.weights, block, units) : block;
          },
          [](const AdapterStage& adapter) -> Stage { return adapter; });
  } else {
    AdapterReader reader(directory, config.hidden);
    model.plan = described.Plan([&](const Place& place, const Entry& entry) {
      return reader.Take(place.Prefix(), entry.kind, entry.rank, entry.norm);
    });
    reader.RefuseLeftOver();
  }
  model.renumbered = !model.plan.Adapters().empty();
  return model;
}

}  // namespace shiftrt
