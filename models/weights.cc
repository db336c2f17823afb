// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>

#include "models/block_tensors.h"
#include "models/families.h"
#include "models/hf_lra.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/json.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// What old exporters left in checkpoints; computed from the configuration instead.
bool Ignorable(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Every file of a checkpoint, and which of them holds which tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
    const auto index = directory / "model.safetensors.index.json";
    if (Exists(directory / "model.safetensors")) {
      for (const auto& [name, tensor] : Open("model.safetensors").tensors()) tensors_[name] = tensor;
      return;
    }
    Check(Exists(index), "{}: neither model.safetensors nor model.safetensors.index.json is there", directory.string());
    ReadIndex(index);
    RefuseUnlisted(index);
  }

  // The tensor `name`, its shape and type checked. Marks it as used.
  TensorView Take(const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = tensors_.find(name);
    Check(found != tensors_.end(), "{}: tensor {} is missing", directory_.string(), name);
    const TensorView& tensor = found->second;
    Check(tensor.shape == shape, "{}: tensor {} has shape [{}], expected [{}]", directory_.string(), name,
          fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    Check(tensor.dtype != DType::kFloat64, "{}: tensor {} is float64, which is not supported", directory_.string(),
          name);
    used_.insert(name);
    return tensor;
  }

  // What nothing asked for must be known to be harmless.
  void RefuseLeftOver(bool tied_head, bool adapters_beside) const {
    for (const auto& [name, tensor] : tensors_) {
      if (adapters_beside && name.find(kHfLraTensors) != name.npos) continue;
      if (used_.contains(name) || Ignorable(name) || (tied_head && name == "lm_head.weight")) continue;
      Fail("{}: tensor {} is not one this configuration has", directory_.string(), name);
    }
  }

  std::vector<std::shared_ptr<const void>> Storage() const {
    std::vector<std::shared_ptr<const void>> storage;
    for (const auto& [name, file] : files_) storage.push_back(file);
    return storage;
  }

 private:
  const SafetensorsFile& Open(const std::string& name) {
    auto& file = files_[name];
    if (file) return *file;
    file = std::make_shared<SafetensorsFile>(directory_ / name);
    for (const auto& [tensor, type] : file->others())  // quantised weights, or no weights at all
      Fail("{}: tensor {} is of type {}, expected F32, F16 or BF16", file->path().string(), tensor, type);
    return *file;
  }

  void ReadIndex(const std::filesystem::path& index) {
    const Json json = ParseJson(ReadFile(index, kMaxIndexBytes), index.string());
    Check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: weight_map is missing", index.string());
    for (const auto& [name, value] : json["weight_map"].items()) {
      Check(value.is_string(), "{}: the shard of tensor {} is not a file name", index.string(), name);
      const auto& shard = value.get_ref<const std::string&>();
      constexpr std::string_view kSeparators("/\\\0", 3);
      Check(!shard.empty() && shard.find_first_of(kSeparators) == std::string::npos && shard != "." && shard != "..",
            "{}: the shard of tensor {} is {}, not the name of a file in the directory", index.string(), name,
            value.dump());
      const auto& tensors = Open(shard).tensors();
      const auto found = tensors.find(name);
      Check(found != tensors.end(), "{}: tensor {} is not in {} as the index says", directory_.string(), name, shard);
      tensors_[name] = found->second;
    }
  }

  // A tensor in two shards, or in one but not in the index, is a broken checkpoint even where the rest is complete.
  void RefuseUnlisted(const std::filesystem::path& index) const {
    std::map<std::string_view, std::string_view> owner;
    for (const auto& [shard, file] : files_) {
      for (const auto& [name, tensor] : file->tensors()) {
        const auto [at, fresh] = owner.emplace(name, shard);
        Check(fresh, "{}: tensor {} is in {} and in {}", directory_.string(), name, at->second, shard);
        Check(tensors_.contains(name) || Ignorable(name), "{}: tensor {} of {} is not listed", index.string(), name,
              shard);
      }
    }
  }

  static constexpr uint64_t kMaxIndexBytes = 1 << 26;

  std::filesystem::path directory_;
  std::map<std::string, std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
  std::set<std::string> used_;
};

// The lowest i in [0, n) for which wrong(i) holds, or n. `wrong` is called once for every i, from several threads.
template <typename Wrong>
int64_t FirstWhere(int64_t n, const Wrong& wrong) {
  std::mutex joining;
  int64_t first = n;
  ParallelFor(Cores(), n, 1 << 12, [&](int64_t begin, int64_t end) {
    int64_t found = end;
    for (int64_t i = begin; i < end; ++i)
      if (wrong(i)) found = std::min(found, i);
    if (found == end) return;
    const std::scoped_lock lock(joining);
    first = std::min(first, found);
  });
  return first;
}

void CheckFinite(const std::string& where, const TensorView& tensor) {
  WithElements(tensor, [&](const auto* data) {
    const int64_t n = tensor.elements();
    const int64_t bad = FirstWhere(n, [&](int64_t i) { return !std::isfinite(static_cast<float>(data[i])); });
    if (bad < n) Fail("{}: element {} is {}", where, bad, static_cast<float>(data[bad]));
  });
}

// A copy of `tensor` with elements of type T, which must be able to hold every finite one. `where` names it in errors.
template <typename T>
std::shared_ptr<Buffer<T>> ConvertTo(const std::string& where, const TensorView& tensor) {
  const int64_t n = tensor.elements();
  auto copy = std::make_shared<Buffer<T>>(n);
  T* out = copy->data();
  WithElements(tensor, [&](const auto* data) {
    const int64_t bad = FirstWhere(n, [&](int64_t i) {
      const auto value = static_cast<float>(data[i]);
      out[i] = T(value);
      return std::isfinite(value) && !std::isfinite(static_cast<float>(out[i]));
    });
    if (bad < n) {
      Fail("{}: element {} is {}, too large for {}", where, bad, static_cast<float>(data[bad]),
           Name(DTypeOf<T>::value));
    }
  });
  return copy;
}

// `tensor` in the type asked for: itself where it has that already.
template <typename T>
TensorView Converted(const std::string& where, const TensorView& tensor, Weights& weights) {
  if (tensor.dtype == DTypeOf<T>::value) return tensor;
  const auto copy = ConvertTo<T>(where, tensor);
  weights.storage.push_back(copy);
  weights.stored[copy->data()] = tensor;
  return {copy->data(), DTypeOf<T>::value, tensor.shape};
}

// `tensor`, or a copy where the file has put it at an address its type cannot have.
TensorView Aligned(const TensorView& tensor, Weights& weights) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % SizeOf(tensor.dtype) == 0) return tensor;
  const auto copy = std::make_shared<Buffer<std::byte>>(tensor.bytes());
  std::memcpy(copy->data(), tensor.data, static_cast<size_t>(tensor.bytes()));
  weights.storage.push_back(copy);
  return {copy->data(), tensor.dtype, tensor.shape};
}

TensorView Convert(const std::string& where, const TensorView& tensor, LoadDType dtype, Weights& weights) {
  switch (dtype) {
    case LoadDType::kFloat32: return Converted<float>(where, tensor, weights);
    case LoadDType::kFloat16: return Converted<Float16>(where, tensor, weights);
    case LoadDType::kBFloat16: return Converted<BFloat16>(where, tensor, weights);
    case LoadDType::kAuto: break;
  }
  return tensor;
}

// `count` rows of `tensor` from row `first` on.
TensorView RowsOf(const TensorView& tensor, int64_t first, int64_t count) {
  TensorView rows = tensor;
  rows.shape[0] = count;
  rows.data = static_cast<const std::byte*>(tensor.data) + first * (tensor.bytes() / tensor.shape[0]);
  return rows;
}

// The parts of `whole` as views into it. Where it is a converted copy, each part has its own place in the file.
void Split(const TensorView& whole, const CheckpointTensor& stored, BlockWeights& block, Weights& weights) {
  const auto converted = weights.stored.find(whole.data);
  const auto original = converted == weights.stored.end() ? std::nullopt : std::optional(converted->second);
  int64_t first = 0;
  for (const BlockTensor* part : stored.parts) {
    const int64_t rows = part->Shape(weights.config)[0];
    const TensorView view = RowsOf(whole, first, rows);
    if (original) weights.stored[view.data] = RowsOf(*original, first, rows);
    block.*part->member = view;
    first += rows;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> TensorShapes(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  shapes.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  const std::vector<CheckpointTensor> block = CheckpointTensors(config);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const CheckpointTensor& tensor : block)
      shapes.push_back({fmt::format("model.layers.{}.{}", layer, tensor.name), tensor.shape});
  shapes.push_back({"model.norm.weight", {config.hidden}});
  if (!config.tied_head) shapes.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return shapes;
}

void Weights::ForEach(const std::function<void(const std::string& name, const TensorView&)>& visit) const {
  visit("model.embed_tokens.weight", embedding);
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    ForEachTensor(blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
      visit(fmt::format("model.layers.{}.{}", layer, row.name), tensor);
    });
  visit("model.norm.weight", final_norm);
  if (!config.tied_head) visit("lm_head.weight", head);
}

void Weights::ForEachStored(
    const std::function<void(const std::string& name, std::span<const TensorView> parts)>& visit) const {
  visit("model.embed_tokens.weight", {&embedding, 1});
  const std::vector<CheckpointTensor> stored_tensors = CheckpointTensors(config);
  std::vector<TensorView> parts;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    for (const CheckpointTensor& tensor : stored_tensors) {
      parts.clear();
      for (const BlockTensor* part : tensor.parts) parts.push_back(blocks[layer].*part->member);
      visit(fmt::format("model.layers.{}.{}", layer, tensor.name), parts);
    }
  }
  visit("model.norm.weight", {&final_norm, 1});
  if (!config.tied_head) visit("lm_head.weight", {&head, 1});
}

float Weights::EmbeddingScale() const {
  if (!config.block.scaled_embeddings) return 1;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(config.hidden)));
  return WithType(embedding.dtype, [&]<typename T>(std::type_identity<T>) { return static_cast<float>(T(root)); });
}

std::string Weights::Fingerprint() const {
  constexpr int64_t kBlock = 4096, kBlocks = 5;
  const ModelConfig& c = config;
  const RopeSpec& r = config.rope;
  std::string summary = fmt::format("{} {} {} {} {} {} {} {} {}\n{} {} {} {} {} {} {} {} {} {}", c.family, c.hidden,
                                    c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocab, c.rms_eps,
                                    static_cast<int>(r.kind), r.theta, r.factor, r.low_freq_factor, r.high_freq_factor,
                                    r.beta_fast, r.beta_slow, r.attention_factor, r.truncate, r.original_max_positions);
  // What only some families have is said only of them, so that it changes no other's fingerprint.
  const BlockSpec& b = config.block;
  if (b.activation != Activation::kSilu) summary += fmt::format("\nactivation {}", static_cast<int>(b.activation));
  if (b.attention_cap > 0 || b.logit_cap > 0) summary += fmt::format("\ncaps {} {}", b.attention_cap, b.logit_cap);
  if (b.AnyWindow()) summary += fmt::format("\nwindows {}", fmt::join(b.windows, " "));
  if (b.scaled_embeddings) summary += fmt::format("\nattention scale {}", b.attention_scale);
  ForEach([&](const std::string& name, const TensorView& tensor) {
    const auto original = stored.find(tensor.data);
    const TensorView& view = original == stored.end() ? tensor : original->second;
    const int64_t size = view.bytes(), block = std::min(size, kBlock);
    const std::span bytes(static_cast<const std::byte*>(view.data), static_cast<size_t>(size));
    summary += fmt::format("\n{} {} {}", name, Name(view.dtype), fmt::join(view.shape, "x"));
    for (int64_t i = 0; i < kBlocks; ++i)  // from the first to the last of the tensor
      summary += " " + HashHex(bytes.subspan((size - block) * i / (kBlocks - 1), block));
  });
  return HashHex(summary);
}

std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& directory, const LoadOptions& options) {
  return LoadWeights(directory, LoadConfig(directory / "config.json"), options);
}

std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& directory, const ModelConfig& config,
                                           const LoadOptions& options) {
  auto weights = std::make_shared<Weights>();
  weights->directory = directory;
  weights->config = config;
  Checkpoint checkpoint(directory);
  weights->storage = checkpoint.Storage();
  const auto take = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView tensor = Aligned(checkpoint.Take(name, shape), *weights);
    const std::string where = fmt::format("{}: tensor {}", directory.string(), name);
    if (options.check_finite) CheckFinite(where, tensor);
    return Convert(where, tensor, options.dtype, *weights);
  };
  const std::vector<CheckpointTensor> stored_tensors = CheckpointTensors(config);
  weights->embedding = take("model.embed_tokens.weight", {config.vocab, config.hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockWeights& block = weights->blocks.emplace_back();
    for (const CheckpointTensor& tensor : stored_tensors)
      Split(take(fmt::format("model.layers.{}.{}", layer, tensor.name), tensor.shape), tensor, block, *weights);
  }
  weights->final_norm = take("model.norm.weight", {config.hidden});
  weights->head = config.tied_head ? weights->embedding : take("lm_head.weight", {config.vocab, config.hidden});
  checkpoint.RefuseLeftOver(config.tied_head, options.adapters_beside);
  return weights;
}

}  // namespace shiftrt
