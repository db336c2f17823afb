// SPDX-License-Identifier: Apache-2.0
#include "models/plan_checkpoint.h"

#include <algorithm>

#include "models/block_tensors.h"
#include "models/gguf.h"
#include "models/saved_config.h"
#include "runtime/elements.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tokenizers/chat_template.h"
#include "tokenizers/gguf.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMiB = int64_t{1} << 20;

// The word for the mixer in the `layer_types` of the families that have it.
const char* LayerType(Mixer mixer) {
  return mixer == Mixer::kAttention ? "full_attention" : mixer == Mixer::kGatedDelta ? "linear_attention" : "conv";
}

// Divides the tensors among files; returns the indices of each file's tensors, in order.
std::vector<std::vector<size_t>> Shards(std::span<const TensorOfParts> tensors, int64_t shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  int64_t room = -1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].Whole().bytes();
    if (shards.empty() || bytes > room) {
      shards.emplace_back();
      room = shard_bytes;
    }
    shards.back().push_back(i);
    room -= bytes;
  }
  return shards;
}

// The rows of all parts as the file has them: as few matrices as there are rows that stay together.
std::vector<TensorView> InFileOrder(const TensorOfParts& tensor) {
  if (tensor.order == nullptr) return tensor.parts;
  std::vector<TensorView> pieces;
  const std::vector<int64_t> model_rows = *Inverse(tensor.order);
  for (size_t begin = 0, end = 0; begin < model_rows.size(); begin = end) {
    auto part = tensor.parts.begin();
    int64_t row = model_rows[begin];
    for (; row >= part->shape[0]; ++part) row -= part->shape[0];
    const auto most = static_cast<size_t>(part->shape[0] - row);
    while (++end < model_rows.size() && end - begin < most && model_rows[end] == model_rows[end - 1] + 1) {
    }
    TensorView& piece = pieces.emplace_back(*part);
    piece.data = static_cast<const std::byte*>(part->data) + row * (part->bytes() / part->shape[0]);
    piece.shape[0] = static_cast<int64_t>(end - begin);
  }
  return pieces;
}

// The rows of a part, in T, where a tensor holds each expert's matrix transposed.
template <typename T>
class TransposedRows {
 public:
  TransposedRows(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), elements_(rows * columns) {}
  // True when the matrix is complete.
  bool Add(const std::vector<float>& row) {
    for (int64_t i = 0; i < columns_; ++i) elements_[i * rows_ + filled_] = T(row[i]);
    filled_ = (filled_ + 1) % rows_;
    return filled_ == 0;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(elements_.span()); }

 private:
  int64_t rows_, columns_, filled_ = 0;
  Buffer<T> elements_;
};

// Writes bytes in pieces, and reports each MiB once.
class MeteredWriter {
 public:
  explicit MeteredWriter(Progress& progress) : progress_(progress) {}

  void Write(AtomicFile& file, const TensorOfParts& tensor) {
    const std::vector<TensorView> pieces = InFileOrder(tensor);
    if (!tensor.transposed) {
      for (const TensorView& piece : pieces) Write(file, piece);
      return;
    }
    WithType(ExpandedType(pieces.front().dtype), [&]<typename T>(std::type_identity<T>) {
      TransposedRows<T> expert((*tensor.shape)[2], (*tensor.shape)[1]);
      for (const TensorView& piece : pieces)
        ForEachWidenedRow(piece, [&](int64_t, const std::vector<float>& row) {
          if (expert.Add(row)) Write(file, expert.bytes());
        });
    });
  }

 private:
  // Quantised tensors are written in bfloat16.
  void Write(AtomicFile& file, const TensorView& part) {
    if (!IsQuantised(part.dtype)) return Write(file, {static_cast<const std::byte*>(part.data), Size(part)});
    ForEachWidenedRow(part, [&](int64_t, const std::vector<float>& values) {
      std::vector<BFloat16> row(values.size());
      std::transform(values.begin(), values.end(), row.begin(), [](float value) { return BFloat16(value); });
      Write(file, std::as_bytes(std::span(row)));
    });
  }

  static size_t Size(const TensorView& part) { return static_cast<size_t>(part.bytes()); }
  void Write(AtomicFile& file, std::span<const std::byte> bytes) {
    constexpr size_t kPiece = size_t{16} << 20;
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.size(), kPiece);
      file.Write(bytes.first(size));
      bytes = bytes.subspan(size);
      const int64_t before = written_ / kMiB;
      written_ += static_cast<int64_t>(size);
      progress_.Advance(written_ / kMiB - before);
    }
  }

  Progress& progress_;
  int64_t written_ = 0;
};

}  // namespace

Weights KeptWeights(const Weights& weights, const DepthPlan& plan, bool running_halves) {
  Weights out = weights;
  out.blocks.clear();
  for (const BlockStage* block : plan.Blocks()) {
    BlockWeights& kept = out.blocks.emplace_back(TensorsOf(weights, *block));
    if (!running_halves) continue;
    for (const BlockTensor& row : BlockTensors())
      if (!Reads(block->halves, row)) kept.*row.member = {};
    if (!RunsMlp(block->halves)) kept.experts.clear();
  }
  const auto [final_norm, head, final_norm_bias, table] = plan.Output(weights);
  if (!table.empty()) out.embedding = table;
  out.final_norm = final_norm;
  out.final_norm_bias = final_norm_bias;
  out.head = head;
  out.config.tied_head = plan.TiedHead(weights);
  out.config.layers = plan.blocks();
  if (!weights.config.block.windows.empty()) {
    out.config.block.windows.clear();
    for (const BlockStage* block : plan.Blocks())
      out.config.block.windows.push_back(weights.config.block.Window(block->layer));
  }
  if (!weights.config.block.ropes.empty()) {
    out.config.block.ropes.clear();
    for (const BlockStage* block : plan.Blocks())
      out.config.block.ropes.push_back(weights.config.block.Rope(block->layer));
  }
  if (out.config.block.mixed) {
    MixtureSpec& mixture = out.config.block.mixture;
    mixture.layers.clear();
    for (const BlockStage* block : plan.Blocks())
      mixture.layers.push_back(weights.config.block.mixture.In(block->layer));
    const auto mixed = std::count(mixture.layers.begin(), mixture.layers.end(), true);
    out.config.block.mixed = mixed > 0;
    out.config.block.dense = mixed < out.config.layers;
  }
  if (!weights.config.block.mixers.empty()) {
    std::vector<Mixer> mixers;
    for (const BlockStage* block : plan.Blocks()) mixers.push_back(weights.config.block.MixerOf(block->layer));
    out.config.block.SetMixers(std::move(mixers));
  }
  out.stored.clear();  // they are written as they were loaded
  return out;
}

std::shared_ptr<const Weights> AsInFile(const std::shared_ptr<const Weights>& weights, const DepthPlan& plan) {
  if (!plan.output || plan.output->table.empty()) return weights;
  auto changed = std::make_shared<Weights>(*weights);
  changed->embedding = plan.output->table;
  changed->storage.push_back(plan.output);
  return changed;
}

Json BaseConfig(const std::filesystem::path& model) {
  return IsGguf(model) ? GgufConfig(GgufFile(model).contents()) : ReadUnmarked(model / "config.json");
}

Json PlanConfig(const Model& model, const DepthPlan& plan, std::vector<std::string>* resized) {
  Json config = BaseConfig(model.directory);
  const bool says_tied = ConfigFromJson(config, (model.directory / "config.json").string()).tied_head;
  // Some families choose the layers with a window by number. Numbers change when layers are removed, so the windows are
  // named.
  const std::vector<int64_t>& windows = model.weights->config.block.windows;
  const bool differ = std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to<>()) != windows.end();
  if (differ && !config.value("layer_types", Json()).is_array()) {
    config["layer_types"] = Json::array();
    for (const int64_t window : windows)
      config["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
  }
  const std::vector<Mixer>& mixers = model.weights->config.block.mixers;
  if (!mixers.empty() && !config.value("layer_types", Json()).is_array()) {
    config["layer_types"] = Json::array();
    for (const Mixer mixer : mixers) config["layer_types"].push_back(LayerType(mixer));
  }
  if (!mixers.empty()) config.erase("full_attn_idxs");  // numbers of layers, whose types are named
  // Layers without rotary embedding are those without a window, or have to be named too.
  const BlockSpec& block = model.weights->config.block;
  bool named_too = false;
  for (size_t layer = 0; layer < block.ropes.size(); ++layer)
    named_too |= block.ropes[layer] == RopeChoice::kNone && (windows.empty() || windows[layer] > 0);
  if (named_too &&
      std::adjacent_find(block.ropes.begin(), block.ropes.end(), std::not_equal_to<>()) != block.ropes.end() &&
      !config.value("no_rope_layers", Json()).is_array()) {
    config["no_rope_layers"] = Json::array();
    for (const RopeChoice rope : block.ropes) config["no_rope_layers"].push_back(rope == RopeChoice::kNone ? 0 : 1);
  }
  config.erase("auto_map");             // the code that it names is not copied
  config.erase("quantization_config");  // the weights are expanded
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key)) config[key] = Name(ExpandedType(model.weights->embedding.dtype));
  // The plan has a head of its own, or the checkpoint has one that differs from the embedding table.
  // Or a GGUF file stores the embedding table a second time as the head.
  if (says_tied != plan.TiedHead(*model.weights)) {
    config["tie_word_embeddings"] = !says_tied;
    config.erase("tie_embedding");  // the name in LFM2, which would count for more
  }
  return KeptConfig(std::move(config), plan, resized);
}

TensorView TensorOfParts::Whole() const {
  TensorView whole = parts.front();
  for (const TensorView& part : std::span(parts).subspan(1)) whole.shape[0] += part.shape[0];
  if (shape) whole.shape = *shape;
  whole.data = nullptr;
  whole.dtype = ExpandedType(whole.dtype);
  return whole;
}

std::vector<TensorOfParts> StoredTensors(const Weights& weights) {
  std::vector<TensorOfParts> tensors;
  weights.ForEachStored([&](const CheckpointTensor& tensor, std::span<const TensorView> parts) {
    std::optional<std::vector<int64_t>> shape;
    if (tensor.together || tensor.shape.empty()) shape = tensor.shape;
    tensors.push_back({tensor.name, {parts.begin(), parts.end()}, tensor.order, shape, tensor.transposed});
  });
  return tensors;
}

void WriteCheckpoint(std::span<const TensorOfParts> tensors, int64_t shard_bytes, AtomicDirectory& directory,
                     Progress& progress) {
  const std::vector<std::vector<size_t>> shards = Shards(tensors, shard_bytes);
  int64_t total = 0;
  for (const TensorOfParts& tensor : tensors) total += tensor.Whole().bytes();
  Json weight_map = Json::object();
  MeteredWriter writer(progress);
  progress.Begin("writing (MiB)", total / kMiB);
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
    std::vector<NamedTensor> header;
    for (const size_t i : shards[shard]) header.push_back({tensors[i].name, tensors[i].Whole()});
    AtomicFile& file = directory.Create(name);
    file.Write(SafetensorsHeader(header, {{"format", "pt"}}));
    for (const size_t i : shards[shard]) {
      weight_map[tensors[i].name] = name;
      writer.Write(file, tensors[i]);
    }
  }
  progress.End();
  if (shards.size() == 1) return;
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  directory.Create("model.safetensors.index.json").Write(index.dump(2) + "\n");
}

std::string CopyCompanions(const Model& model, AtomicDirectory& directory) {
  if (IsGguf(model.directory)) {
    const GgufFile file(model.directory);
    if (!HasGgufTokenizer(file)) return "";
    std::map<std::string, std::string> files;
    try {
      files = GgufTokenizerFiles(file);
    } catch (const Error& error) {
      return fmt::format("There is no tokenizer in the directory, because the file's cannot be written as one: {}.",
                         error.what());
    }
    for (const auto& [name, text] : files) directory.Create(name).Write(text);
    return "";
  }
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "tokenizer.model", "generation_config.json", "chat_template.jinja", "chat_template.json",
        "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md"})
    if (Exists(model.directory / file)) directory.Create(file).Write(ReadFile(model.directory / file));
  for (const std::filesystem::path& file : FurtherTemplateFiles(model.directory))
    directory.Create(fmt::format("{}/{}", kFurtherTemplates, file.filename().string())).Write(ReadFile(file));
  return "";
}

}  // namespace shiftrt
