#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/check.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// Every file of a checkpoint, and which of them holds which tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
    const auto index = directory / "model.safetensors.index.json";
    if (std::filesystem::exists(directory / "model.safetensors")) {
      Open("model.safetensors");
      for (const auto& [name, tensor] : files_.begin()->second->tensors()) tensors_[name] = tensor;
    } else {
      Check(std::filesystem::exists(index), "{}: neither model.safetensors nor model.safetensors.index.json is there",
            directory.string());
      ReadIndex(index);
    }
  }

  // The tensor `name`, its shape checked. Marks it as used.
  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
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
  void RefuseLeftOver(bool tied_head) const {
    for (const auto& [name, tensor] : tensors_) {
      if (used_.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
      if (tied_head && name == "lm_head.weight") continue;
      Fail("{}: tensor {} is not one this architecture has", directory_.string(), name);
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
    if (!file) file = std::make_shared<SafetensorsFile>(directory_ / name);
    return *file;
  }

  void ReadIndex(const std::filesystem::path& index) {
    Json json;
    try {
      json = Json::parse(ReadFile(index, 1 << 28));
    } catch (const Json::exception& e) {
      Fail("{}: not valid JSON: {}", index.string(), e.what());
    }
    Check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: weight_map is missing", index.string());
    for (const auto& [name, value] : json["weight_map"].items()) {
      Check(value.is_string(), "{}: the shard of tensor {} is not a file name", index.string(), name);
      const auto shard = value.get<std::string>();
      Check(!shard.empty() && shard.find('/') == std::string::npos && shard != "..",
            "{}: the shard of tensor {} is \"{}\", not a plain file name in the directory", index.string(), name,
            shard);
      const auto& tensors = Open(shard).tensors();
      const auto found = tensors.find(name);
      Check(found != tensors.end(), "{}: tensor {} is not in {} as the index says", directory_.string(), name, shard);
      tensors_[name] = found->second;
    }
    // A tensor in two shards is a broken checkpoint even where the index picks one of them.
    std::map<std::string, std::string> owner;
    for (const auto& [shard, file] : files_) {
      for (const auto& [name, tensor] : file->tensors()) {
        const auto [at, fresh] = owner.emplace(name, shard);
        Check(fresh, "{}: tensor {} is in {} and in {}", directory_.string(), name, at->second, shard);
      }
    }
  }

  std::filesystem::path directory_;
  std::map<std::string, std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorView> tensors_;
  std::set<std::string> used_;
};

float Widen(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kBFloat16: return static_cast<float>(static_cast<const BFloat16*>(tensor.data)[i]);
    case DType::kFloat16: return static_cast<float>(static_cast<const Float16*>(tensor.data)[i]);
    default: return static_cast<const float*>(tensor.data)[i];
  }
}

template <typename T>
TensorView ConvertTo(const TensorView& tensor, std::vector<std::shared_ptr<const void>>& storage) {
  auto copy = std::make_shared<Buffer<T>>(tensor.elements());
  for (int64_t i = 0; i < tensor.elements(); ++i) (*copy)[i] = T(Widen(tensor, i));
  storage.push_back(copy);
  return {copy->data(), DTypeOf<T>::value, tensor.shape};
}

TensorView Convert(const TensorView& tensor, LoadDType dtype, std::vector<std::shared_ptr<const void>>& storage) {
  const DType wanted = dtype == LoadDType::kFloat32   ? DType::kFloat32
                       : dtype == LoadDType::kFloat16 ? DType::kFloat16
                                                      : DType::kBFloat16;
  if (dtype == LoadDType::kAuto || tensor.empty() || tensor.dtype == wanted) return tensor;
  if (wanted == DType::kFloat32) return ConvertTo<float>(tensor, storage);
  if (wanted == DType::kFloat16) return ConvertTo<Float16>(tensor, storage);
  return ConvertTo<BFloat16>(tensor, storage);
}

void CheckFinite(const std::string& name, const TensorView& tensor) {
  for (int64_t i = 0; i < tensor.elements(); ++i)
    Check(std::isfinite(Widen(tensor, i)), "tensor {}: element {} is {}", name, i, Widen(tensor, i));
}

// Names of a block's tensors in a Hugging Face checkpoint, in the order they are visited.
struct BlockTensor {
  const char* name;
  TensorView BlockWeights::*member;
};
constexpr BlockTensor kBlockTensors[] = {
    {"input_layernorm.weight", &BlockWeights::input_norm},
    {"self_attn.q_proj.weight", &BlockWeights::q},
    {"self_attn.k_proj.weight", &BlockWeights::k},
    {"self_attn.v_proj.weight", &BlockWeights::v},
    {"self_attn.o_proj.weight", &BlockWeights::o},
    {"self_attn.q_proj.bias", &BlockWeights::q_bias},
    {"self_attn.k_proj.bias", &BlockWeights::k_bias},
    {"self_attn.v_proj.bias", &BlockWeights::v_bias},
    {"self_attn.o_proj.bias", &BlockWeights::o_bias},
    {"self_attn.q_norm.weight", &BlockWeights::q_norm},
    {"self_attn.k_norm.weight", &BlockWeights::k_norm},
    {"post_attention_layernorm.weight", &BlockWeights::post_norm},
    {"mlp.gate_proj.weight", &BlockWeights::gate},
    {"mlp.up_proj.weight", &BlockWeights::up},
    {"mlp.down_proj.weight", &BlockWeights::down},
    {"mlp.gate_proj.bias", &BlockWeights::gate_bias},
    {"mlp.up_proj.bias", &BlockWeights::up_bias},
    {"mlp.down_proj.bias", &BlockWeights::down_bias},
};

}  // namespace

std::vector<int64_t> BlockTensorShape(const ModelConfig& c, std::string_view name) {
  const int64_t d = c.hidden, m = c.intermediate;
  const auto when = [](bool there, std::vector<int64_t> shape) { return there ? shape : std::vector<int64_t>{}; };
  if (name == "input_layernorm.weight" || name == "post_attention_layernorm.weight") return {d};
  if (name == "self_attn.q_proj.weight") return {c.query_dim(), d};
  if (name == "self_attn.k_proj.weight" || name == "self_attn.v_proj.weight") return {c.kv_dim(), d};
  if (name == "self_attn.o_proj.weight") return {d, c.query_dim()};
  if (name == "self_attn.q_proj.bias") return when(c.qkv_bias, {c.query_dim()});
  if (name == "self_attn.k_proj.bias" || name == "self_attn.v_proj.bias") return when(c.qkv_bias, {c.kv_dim()});
  if (name == "self_attn.o_proj.bias") return when(c.output_bias, {d});
  if (name == "self_attn.q_norm.weight" || name == "self_attn.k_norm.weight") return when(c.qk_norm, {c.head_dim});
  if (name == "mlp.gate_proj.weight" || name == "mlp.up_proj.weight") return {m, d};
  if (name == "mlp.down_proj.weight") return {d, m};
  if (name == "mlp.gate_proj.bias" || name == "mlp.up_proj.bias") return when(c.mlp_bias, {m});
  return when(c.mlp_bias, {d});  // mlp.down_proj.bias
}

std::vector<std::pair<std::string, std::vector<int64_t>>> TensorShapes(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  shapes.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const BlockTensor& tensor : kBlockTensors) {
      auto shape = BlockTensorShape(config, tensor.name);
      if (!shape.empty()) shapes.push_back({fmt::format("model.layers.{}.{}", layer, tensor.name), std::move(shape)});
    }
  }
  shapes.push_back({"model.norm.weight", {config.hidden}});
  if (!config.tied_head) shapes.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return shapes;
}

void Weights::ForEachInBlock(const BlockWeights& block,
                             const std::function<void(const std::string& name, const TensorView&)>& visit) {
  for (const BlockTensor& tensor : kBlockTensors)
    if (!(block.*tensor.member).empty()) visit(tensor.name, block.*tensor.member);
}

void Weights::ForEach(const std::function<void(const std::string& name, const TensorView&)>& visit) const {
  visit("model.embed_tokens.weight", embedding);
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    ForEachInBlock(blocks[layer], [&](const std::string& name, const TensorView& tensor) {
      visit(fmt::format("model.layers.{}.{}", layer, name), tensor);
    });
  visit("model.norm.weight", final_norm);
  if (!config.tied_head) visit("lm_head.weight", head);
}

std::string Weights::Fingerprint() const {
  constexpr int64_t kSample = 4096;
  std::string summary =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {}", config.family, config.hidden, config.intermediate, config.layers,
                  config.heads, config.kv_heads, config.head_dim, config.vocab, config.rms_eps, config.rope.theta,
                  static_cast<int>(config.rope.kind));
  ForEach([&](const std::string& name, const TensorView& tensor) {
    const auto bytes = std::span(static_cast<const std::byte*>(tensor.data), tensor.bytes());
    const int64_t size = tensor.bytes(), sample = std::min(size, kSample);
    summary += fmt::format("\n{} {} {}", name, Name(tensor.dtype), fmt::join(tensor.shape, "x"));
    for (int64_t at : {int64_t{0}, (size - sample) / 2, size - sample})
      summary += " " + HashHex(bytes.subspan(at, sample));
  });
  return HashHex(summary);
}

std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& directory, const LoadOptions& options) {
  auto weights = std::make_shared<Weights>();
  weights->directory = directory;
  weights->config = LoadConfig(directory / "config.json");
  const ModelConfig& config = weights->config;
  Checkpoint checkpoint(directory);
  weights->storage = checkpoint.Storage();
  const auto take = [&](const std::string& name, std::vector<int64_t> shape) {
    const TensorView stored = checkpoint.Take(name, std::move(shape));
    if (options.check_finite) CheckFinite(name, stored);
    return Convert(stored, options.dtype, weights->storage);
  };
  weights->embedding = take("model.embed_tokens.weight", {config.vocab, config.hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockWeights& block = weights->blocks.emplace_back();
    for (const BlockTensor& tensor : kBlockTensors) {
      auto shape = BlockTensorShape(config, tensor.name);
      if (!shape.empty())
        block.*tensor.member = take(fmt::format("model.layers.{}.{}", layer, tensor.name), std::move(shape));
    }
  }
  weights->final_norm = take("model.norm.weight", {config.hidden});
  weights->head = config.tied_head ? weights->embedding : take("lm_head.weight", {config.vocab, config.hidden});
  checkpoint.RefuseLeftOver(config.tied_head);
  return weights;
}

}  // namespace shiftrt
