// SPDX-License-Identifier: Apache-2.0
#include "export/llama_layers.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "export/model_card.h"
#include "models/block_tensors.h"
#include "models/families.h"
#include "models/hf_lra.h"
#include "models/llama_layers.h"
#include "models/saved_config.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;
using Shape = std::vector<int64_t>;

// The units that all MLPs of the layers have.
int64_t CommonUnits(const ExportJob& job) {
  int64_t units = job.model.weights->config.intermediate;
  for (const BlockStage* block : job.plan.Blocks())
    if (RunsMlp(block->halves)) units = std::max(units, MlpUnits(TensorsOf(*job.model.weights, *block)));
  for (const AdapterStage* adapter : job.plan.Adapters()) units = std::max(units, adapter->lra->rank());
  return units;
}

// The config.json of the Llama, without the mark. Settings whose defaults differ between the families are all named.
Json LlamaConfig(Json config, const ModelConfig& model, int64_t layers, int64_t units, bool mlp_bias) {
  for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
    config.erase(key);
  config["architectures"] = Json::array({"LlamaForCausalLM"});
  config["model_type"] = "llama";
  config["vocab_size"] = model.vocab;
  config["hidden_size"] = model.hidden;
  config["intermediate_size"] = units;
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = model.max_positions;
  config["rms_norm_eps"] = model.rms_eps;
  config["tie_word_embeddings"] = model.tied_head;
  config["attention_bias"] = model.block.qkv_bias;
  config["mlp_bias"] = mlp_bias;
  if (!config.contains("rope_theta") && !config.contains("rope_parameters")) config["rope_theta"] = model.rope.theta;
  return config;
}

// Makes the tensors of the layers.
class LayerMaker {
 public:
  LayerMaker(const Weights& kept, const Json& llama)
      : kept_(kept),
        config_(kept.config),
        dtype_(ExpandedType(kept.embedding.dtype)),
        units_(llama.at("intermediate_size").get<int64_t>()),
        attention_bias_(llama.at("attention_bias").get<bool>()),
        mlp_bias_(llama.at("mlp_bias").get<bool>()) {}

  void Add(int64_t number, const LlamaLayer& layer, const Lra* adapter) {
    prefix_ = LlamaLayerPrefix(number);
    if (layer.attention >= 0)
      AddHalf(layer.attention, Halves::kAttention);
    else
      AddNoAttention();
    if (layer.mlp >= 0)
      AddHalf(layer.mlp, Halves::kMlp);
    else
      AddMlp(adapter);
  }
  void AddWhole(const std::string& name, const TensorView& tensor) { tensors_.push_back({name, {tensor}}); }

  std::vector<TensorOfParts> tensors() { return std::move(tensors_); }
  std::vector<std::shared_ptr<const void>> storage() { return std::move(storage_); }

 private:
  // Puts a tensor into the layer; without parts, one of zeros.
  void Put(const std::string& name, std::vector<TensorView> parts) {
    tensors_.push_back({prefix_ + name, std::move(parts)});
  }
  TensorView Zeros(const Shape& shape, DType dtype) {
    const TensorView view{nullptr, dtype, shape};
    std::shared_ptr<const std::vector<std::byte>>& zeros = zeros_[view.bytes()];
    if (!zeros) storage_.push_back(zeros = std::make_shared<const std::vector<std::byte>>(view.bytes()));
    return {zeros->data(), dtype, shape};
  }
  void PutZeros(const std::string& name, const Shape& shape) { Put(name, {Zeros(shape, dtype_)}); }
  TensorView Stored(Matrix<float> values, bool vector = false) {
    const auto kept = std::make_shared<const Matrix<float>>(std::move(values));
    storage_.push_back(kept);
    return {kept->data(), DType::kFloat32, vector ? Shape{kept->cols()} : Shape{kept->rows(), kept->cols()}};
  }
  void PutOnes(const std::string& name) {
    Matrix<float> ones(1, config_.hidden);
    std::fill_n(ones.data(), ones.size(), 1.0f);
    Put(name, {Stored(std::move(ones), true)});
  }

  // A matrix with zeros to the right of its columns.
  TensorView Widened(const TensorView& tensor, int64_t columns) {
    TensorView out{nullptr, ExpandedType(tensor.dtype), {tensor.rows(), columns}};
    const auto bytes = std::make_shared<std::vector<std::byte>>(out.bytes());
    WithType(out.dtype, [&]<typename T>(std::type_identity<T>) {
      ForEachWidenedRow(tensor, [&](int64_t row, const std::vector<float>& values) {
        std::vector<T> narrow(values.size());
        std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return T(value); });
        std::memcpy(bytes->data() + row * columns * static_cast<int64_t>(sizeof(T)), narrow.data(),
                    narrow.size() * sizeof(T));
      });
    });
    out.data = bytes->data();
    storage_.push_back(bytes);
    return out;
  }

  void AddHalf(int64_t block, Halves half) {
    const BlockWeights& weights = kept_.blocks[block];
    const int64_t missing = units_ - MlpUnits(weights);
    for (const BlockTensor& row : BlockTensors()) {
      const TensorView& tensor = weights.*row.member;
      if (row.half != half || tensor.empty()) continue;
      std::vector<TensorView> parts = {tensor};
      if (half == Halves::kMlp && missing > 0 && row.output == Axis::kIntermediate) {
        Shape rest = tensor.shape;
        rest[0] = missing;
        parts.push_back(Zeros(rest, ExpandedType(tensor.dtype)));
      } else if (half == Halves::kMlp && missing > 0 && row.input == Axis::kIntermediate) {
        parts = {Widened(tensor, units_)};
      }
      Put(row.name, std::move(parts));
    }
    if (half == Halves::kAttention && attention_bias_ && weights.o_bias.empty())
      PutZeros("self_attn.o_proj.bias", {config_.hidden});
    if (half == Halves::kMlp && mlp_bias_ && weights.down_bias.empty()) PutMlpBiases(false);
  }

  void PutMlpBiases(bool without_down) {
    PutZeros("mlp.gate_proj.bias", {units_});
    PutZeros("mlp.up_proj.bias", {units_});
    if (!without_down) PutZeros("mlp.down_proj.bias", {config_.hidden});
  }

  void AddNoAttention() {
    const int64_t d = config_.hidden, q = config_.query_dim(), kv = config_.kv_dim();
    PutOnes(kLlamaAttentionNorm);
    PutZeros("self_attn.q_proj.weight", {q, d});
    for (const char* name : {"k_proj", "v_proj"}) PutZeros(fmt::format("self_attn.{}.weight", name), {kv, d});
    PutZeros("self_attn.o_proj.weight", {d, q});
    if (!attention_bias_) return;
    PutZeros("self_attn.q_proj.bias", {q});
    for (const char* name : {"k_proj", "v_proj"}) PutZeros(fmt::format("self_attn.{}.bias", name), {kv});
    PutZeros("self_attn.o_proj.bias", {d});
  }

  // An adapter, or an MLP that adds nothing.
  void AddMlp(const Lra* lra) {
    const int64_t d = config_.hidden, rank = lra != nullptr ? lra->rank() : 0;
    if (lra != nullptr && lra->normed())
      Put(kLlamaMlpNorm, {Stored(lra->norm.Clone(), true)});
    else
      PutOnes(kLlamaMlpNorm);
    PutZeros("mlp.gate_proj.weight", {units_, d});
    if (rank == 0) {
      PutZeros("mlp.up_proj.weight", {units_, d});
      PutZeros("mlp.down_proj.weight", {d, units_});
    } else {
      PutFactors(*lra, rank);
    }
    if (!mlp_bias_) return;
    if (lra == nullptr) return PutMlpBiases(false);
    Matrix<float> gate = Matrix<float>::Zeros(1, units_);
    std::fill_n(gate.data(), rank, kConstantGate);
    Put("mlp.gate_proj.bias", {Stored(std::move(gate), true)});
    PutZeros("mlp.up_proj.bias", {units_});
    Put("mlp.down_proj.bias", {Stored(lra->b.Clone(), true)});
  }

  void PutFactors(const Lra& lra, int64_t rank) {
    const int64_t d = config_.hidden;
    Matrix<float> up = Matrix<float>::Zeros(units_, d), down = Matrix<float>::Zeros(d, units_);
    for (int64_t i = 0; i < d; ++i)
      for (int64_t r = 0; r < rank; ++r) {
        up(r, i) = (lra.low_rank() ? lra.p(i, r) : i == r ? 1.0f : 0.0f) / kConstantGate;
        down(i, r) = lra.low_rank() ? lra.q(r, i) : lra.a(r, i);
      }
    Put("mlp.up_proj.weight", {Stored(std::move(up))});
    Put("mlp.down_proj.weight", {Stored(std::move(down))});
  }

  const Weights& kept_;
  const ModelConfig& config_;
  const DType dtype_;
  const int64_t units_;
  const bool attention_bias_, mlp_bias_;
  std::string prefix_;
  std::vector<TensorOfParts> tensors_;
  std::vector<std::shared_ptr<const void>> storage_;
  std::map<int64_t, std::shared_ptr<const std::vector<std::byte>>> zeros_;  // by their bytes
};

}  // namespace

std::string WhyNoLlamaLayers(const ModelConfig& config) {
  const char* const families[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"};
  const bool held = std::any_of(std::begin(families), std::end(families), [&](const char* architecture) {
    return config.family == FindFamily(architecture)->name;
  });
  if (!held)
    return fmt::format(
        "half blocks, adapters and MLPs of other units are written as layers of a Llama, which holds families llama, "
        "mistral and qwen2 and not {}; --recipe stock makes a model with none of them",
        config.family);
  if (config.block.AnyWindow()) return "some blocks attend to a window, which a Llama does not";
  if (config.hidden % config.heads != 0)
    return fmt::format("a Llama of hidden size {} cannot have {} heads in transformers", config.hidden, config.heads);
  return "";
}

int64_t EmptyPlaces(const DepthPlan& plan) {
  int64_t empty = 0;
  for (const LlamaLayer& layer : LlamaLayersOf(plan))
    empty += (layer.attention < 0) + (layer.mlp < 0 && layer.adapter < 0);
  return empty;
}

LlamaCheckpoint MakeLlamaCheckpoint(const ExportJob& job) {
  const Weights kept = KeptWeights(*job.model.weights, job.plan, /*running_halves=*/true);
  const std::vector<LlamaLayer> layers = LlamaLayersOf(job.plan);
  const std::vector<const AdapterStage*> adapters = job.plan.Adapters();
  const Json blocks = PlanConfig(job.model, job.plan);
  const bool mlp_bias = kept.config.block.mlp_bias || !adapters.empty();
  Json llama = LlamaConfig(blocks, kept.config, std::ssize(layers), CommonUnits(job), mlp_bias);
  // The tensors have several types, so that programs need the name of one.
  if (!llama.contains("dtype") && !llama.contains("torch_dtype"))
    llama["torch_dtype"] = Name(ExpandedType(kept.embedding.dtype));

  LlamaCheckpoint out;
  LayerMaker maker(kept, llama);
  maker.AddWhole("model.embed_tokens.weight", kept.embedding);
  for (int64_t i = 0; i < std::ssize(layers); ++i)
    maker.Add(i, layers[i], layers[i].adapter >= 0 ? adapters[layers[i].adapter]->lra.get() : nullptr);
  maker.AddWhole("model.norm.weight", kept.final_norm);
  if (!kept.config.tied_head) maker.AddWhole("lm_head.weight", kept.head);
  out.tensors = maker.tensors();
  out.storage = maker.storage();
  out.config = MarkedAsLlama(blocks, std::move(llama),
                             HfLraMark(*job.model.weights, job.plan, OriginalOf(job).removed, job.provenance, true));
  out.notes.push_back(fmt::format(
      "The architecture is LlamaForCausalLM with {} layers for {} and {}. An adapter is an MLP whose gate is constant. "
      "Zeros fill {} of the places of attentions and MLPs, and take the time and the memory of others. Layers are not "
      "numbered as blocks are, so that LoRA factors of the model do not fit.",
      layers.size(), Counted(job.plan.blocks(), "block"), Counted(std::ssize(adapters), "adapter"),
      EmptyPlaces(job.plan)));
  return out;
}

}  // namespace shiftrt
