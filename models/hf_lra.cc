// SPDX-License-Identifier: Apache-2.0
#include "models/hf_lra.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "models/part_json.h"
#include "models/provenance.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

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

// The tensors of adapters, by name. `files` receives the objects that keep them mapped.
std::map<std::string, TensorView> ReadAdapterTensors(const fs::path& directory,
                                                     std::vector<std::unique_ptr<SafetensorsFile>>& files) {
  const fs::path index = directory / "model.safetensors.index.json";
  std::vector<std::string> names;
  if (Exists(directory / "model.safetensors")) {
    names.emplace_back("model.safetensors");
  } else {
    const Json json = ParseJson(ReadFile(index), index.string());
    for (const auto& [tensor, shard] : json.at("weight_map").items())  // LoadWeights has checked it
      if (std::find(names.begin(), names.end(), shard) == names.end()) names.push_back(shard);
  }
  std::map<std::string, TensorView> tensors;
  for (const std::string& name : names) {
    files.push_back(std::make_unique<SafetensorsFile>(directory / name));
    for (const auto& [tensor, view] : files.back()->tensors())
      if (tensor.find(kHfLraTensors) != std::string::npos) tensors[tensor] = view;
  }
  return tensors;
}

// Takes the tensors of adapters out of the map and checks them.
class AdapterReader {
 public:
  AdapterReader(const fs::path& directory, int64_t hidden) : directory_(directory.string()), hidden_(hidden) {
    tensors_ = ReadAdapterTensors(directory, files_);
  }

  std::shared_ptr<const Lra> Take(const std::string& prefix, const std::string& kind, int64_t rank) {
    Lra lra;
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
    const auto found = tensors_.find(name);
    Check(found != tensors_.end(), "{}: tensor {} is missing", directory_, name);
    const TensorView tensor = found->second;
    Check(tensor.shape == shape, "{}: tensor {} has shape [{}], expected [{}]", directory_, name,
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    Matrix<float> values(shape.size() == 1 ? 1 : shape[0], shape.back());
    WithElements(tensor, [&](const auto* data) {
      for (int64_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(data[i]);
    });
    for (const float value : values.span())
      Check(std::isfinite(value), "{}: tensor {} holds {}", directory_, name, value);
    tensors_.erase(found);
    return values;
  }

  std::string directory_;
  int64_t hidden_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

// An entry of shiftrt.adapters.
struct Entry {
  std::string kind;
  int64_t rank = 0;
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

std::map<Place, Entry> ReadEntries(const Json& adapters, int64_t blocks, const std::vector<BlockPart>& gone,
                                   const std::string& file) {
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
    Entry entry = {word("kind", "low-rank", "full"), 0, {}};
    if (entry.kind != "full") entry.rank = number("rank", 1, 1 << 22);
    entry.removed = Replaced(json.value("removed", Json()), gone, what);
    Check(place.index == 0 || entries.contains({place.layer, place.before, place.index - 1}),
          "{} index {} comes before index {}", what, place.index, place.index - 1);
    Check(entries.emplace(place, std::move(entry)).second, "{} a second one at this place", what);
  }
  return entries;
}

}  // namespace

TensorView AdapterTensor::View() const {
  const bool vector = name.ends_with(".bias");
  return {values.data(), DType::kFloat32,
          vector ? std::vector<int64_t>{values.cols()} : std::vector<int64_t>{values.rows(), values.cols()}};
}

std::vector<AdapterTensor> HfLraTensors(const DepthPlan& plan) {
  std::vector<AdapterTensor> tensors;
  ForEachAdapter(plan, [&](const Place& place, const AdapterStage& adapter) {
    const Lra& lra = *adapter.lra;
    const std::string prefix = place.Prefix();
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

Json HfLraConfig(Json stock, const DepthPlan& plan, const std::vector<int64_t>& removed, const Provenance& provenance) {
  Json adapters = Json::array();
  ForEachAdapter(plan, [&](const Place& place, const AdapterStage& adapter) {
    const Lra& lra = *adapter.lra;
    adapters.push_back({{"layer", place.layer},
                        {"where", place.where()},
                        {"index", place.index},
                        {"kind", lra.low_rank() ? "low-rank" : "full"},
                        {"rank", WrittenRank(lra)},
                        {"removed", adapter.parts}});
  });
  Json mark = {
      {"adapters", std::move(adapters)}, {"removed", removed}, {"provenance", ProvenanceJson(Essentials(provenance))}};
  const std::vector<const BlockStage*> blocks = plan.Blocks();
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    if (blocks[layer]->halves != Halves::kBoth)
      mark["half_blocks"].push_back({{"layer", layer}, {"runs", Name(blocks[layer]->halves)}});
  return MarkedHfLra(std::move(stock), std::move(mark));
}

bool IsHfLra(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  if (!Exists(file)) return false;
  return IsMarkedHfLra(ParseJson(ReadFile(file, kMaxConfigBytes), file.string()));
}

LoadOptions WithHfLra(const fs::path& directory, LoadOptions options) {
  const std::string file = (directory / "config.json").string();
  const Json mark = ParseJson(ReadFile(file, kMaxConfigBytes), file).at("shiftrt");
  options.has_adapters = true;
  options.halves = ReadHalves(mark.value("half_blocks", Json()), ConfigFromJson(ReadUnmarked(file), file).layers, file);
  return options;
}

Model OpenHfLra(const fs::path& directory, const LoadOptions& options) {
  const std::string file = (directory / "config.json").string();
  const Json mark = ParseJson(ReadFile(file, kMaxConfigBytes), file).at("shiftrt");
  const ModelConfig config = ConfigFromJson(ReadUnmarked(file), file);
  const LoadOptions with_adapters = WithHfLra(directory, options);
  Model model;
  model.directory = directory;
  model.weights = LoadWeights(directory, config, with_adapters);
  model.removed = Layers(mark.value("removed", Json()), INT32_MAX, file + ": shiftrt.removed");
  model.provenance = ReadProvenance(mark.value("provenance", Json()));
  std::map<Place, Entry> entries = ReadEntries(mark.value("adapters", Json()), config.layers,
                                               RemovedParts(model.removed, with_adapters.halves), file);
  AdapterReader reader(directory, config.hidden);
  const auto take = [&](int64_t layer, bool before) {
    for (Place place = {layer, before, 0}; entries.contains(place); ++place.index) {
      const Entry& entry = entries[place];
      model.plan.stages.push_back(AdapterStage{entry.removed, reader.Take(place.Prefix(), entry.kind, entry.rank)});
    }
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    take(layer, true);
    model.plan.stages.push_back(BlockStage{layer, with_adapters.halves[layer]});
    take(layer, false);
  }
  reader.RefuseLeftOver();
  model.renumbered = !model.plan.Adapters().empty();
  return model;
}

}  // namespace shiftrt
