// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/block_tensors.h"
#include "models/checkpoint.h"
#include "models/families.h"
#include "models/gguf.h"
#include "models/packed_tensor.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/host_memory.h"
#include "runtime/progress.h"

namespace shiftrt {

namespace {

// `count` rows of `tensor` from row `first` on.
template <typename Tensor>
Tensor RowsOf(const Tensor& tensor, int64_t first, int64_t count) {
  Tensor rows = tensor;
  rows.shape[0] = count;
  rows.data = static_cast<const std::byte*>(tensor.data) + first * (tensor.bytes() / tensor.shape[0]);
  return rows;
}

// Splits `whole` into its parts, which are views. If it is a converted copy, each part records its own position in the
// file.
void Split(const TensorView& whole, const CheckpointTensor& stored, const ModelConfig& of_block, BlockWeights& block,
           Weights& weights) {
  const auto converted = weights.stored.find(whole.data);
  const auto original = converted == weights.stored.end() ? std::nullopt : std::optional(converted->second);
  int64_t first = 0;
  for (const BlockTensor* part : stored.parts) {
    const int64_t rows = part->Shape(of_block)[0];
    TensorView view = RowsOf(whole, first, rows);
    view.shape = part->Shape(of_block);  // a file may leave out a side of 1
    // In another order, these rows of the file are not the part's own, but have as many bytes.
    if (original && stored.parts.size() > 1) weights.stored[view.data] = RowsOf(*original, first, rows);
    part->In(block) = view;
    first += rows;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> TensorShapes(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  shapes.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const CheckpointTensor& tensor : CheckpointTensors(ConfigOfBlock(config, layer, 0)))
      shapes.push_back({fmt::format("model.layers.{}.{}", layer, tensor.name), tensor.shape});
  shapes.push_back({FinalNormName(config), {config.hidden}});
  if (config.block.norm_bias) shapes.push_back({"model.norm.bias", {config.hidden}});
  if (!config.tied_head) shapes.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return shapes;
}

int64_t FileTensor::bytes() const {
  if (packed) return packed->bytes() * shape[0] / packed->rows;
  return elements() / TraitsOf(type).elements * TraitsOf(type).bytes;
}

const char* FileTensor::TypeName() const {
  if (packed) return packed->type.c_str();
  return PlainType(type) ? Name(*PlainType(type)) : TraitsOf(type).name;
}

std::vector<std::span<const std::byte>> FileTensor::Stored() const {
  if (!packed) return {{data, static_cast<size_t>(bytes())}};
  std::vector<std::span<const std::byte>> spans;
  for (const PackedPart& part : packed->parts) spans.push_back(part.tensor.bytes);
  return spans;
}

void Weights::ForEach(const std::function<void(const std::string& name, const TensorView&)>& visit) const {
  visit("model.embed_tokens.weight", embedding);
  for (size_t layer = 0; layer < blocks.size(); ++layer)
    ForEachTensor(blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
      visit(fmt::format("model.layers.{}.{}", layer, row.name), tensor);
    });
  visit("model.norm.weight", final_norm);
  if (config.block.norm_bias) visit("model.norm.bias", final_norm_bias);
  if (!config.tied_head) visit("lm_head.weight", head);
}

void Weights::ForEachStored(
    const std::function<void(const CheckpointTensor& tensor, std::span<const TensorView> parts)>& visit) const {
  const auto visit_one = [&](const char* name, const TensorView& tensor) {
    visit({.name = name, .shape = tensor.shape, .parts = {}}, {&tensor, 1});
  };
  visit_one("model.embed_tokens.weight", embedding);
  std::vector<TensorView> parts;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    for (CheckpointTensor& tensor :
         CheckpointTensors(ConfigOfBlock(config, static_cast<int64_t>(layer), MlpUnits(blocks[layer])))) {
      parts.clear();
      for (const BlockTensor* part : tensor.parts) parts.push_back(part->In(blocks[layer]));
      if (parts.front().empty()) continue;
      tensor.name = fmt::format("model.layers.{}.{}", layer, tensor.name);
      visit(tensor, parts);
    }
  }
  visit_one(FinalNormName(config), final_norm);
  if (config.block.norm_bias) visit_one("model.norm.bias", final_norm_bias);
  if (!config.tied_head) visit_one("lm_head.weight", head);
}

void Weights::RequireWhole(std::string_view what) const {
  if (split())
    FailUsage("{} needs the whole model in each process, and the model is split over {}: start it without --split",
              what, shares.size());
}

float Weights::EmbeddingScale() const {
  if (!config.block.scaled_embeddings) return config.block.embedding_multiplier;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(config.hidden)));
  return WithType(ExpandedType(embedding.dtype),
                  [&]<typename T>(std::type_identity<T>) { return static_cast<float>(T(root)); });
}

std::string Weights::Fingerprint() const {
  constexpr int64_t kBlock = 4096, kBlocks = 5;
  const ModelConfig& c = config;
  const RopeSpec& r = config.rope;
  std::string summary = fmt::format("{} {} {} {} {} {} {} {} {}\n{} {} {} {} {} {} {} {} {} {}", c.family, c.hidden,
                                    c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocab, c.rms_eps,
                                    static_cast<int>(r.kind), r.theta, r.factor, r.low_freq_factor, r.high_freq_factor,
                                    r.beta_fast, r.beta_slow, r.attention_factor, r.truncate, r.original_max_positions);
  // Settings that only some families have are written only for those, so that they do not change the fingerprint of
  // others.
  const BlockSpec& b = config.block;
  if (b.activation != Activation::kSilu) summary += fmt::format("\nactivation {}", static_cast<int>(b.activation));
  if (b.attention_cap > 0 || b.logit_cap > 0) summary += fmt::format("\ncaps {} {}", b.attention_cap, b.logit_cap);
  if (b.AnyWindow()) summary += fmt::format("\nwindows {}", fmt::join(b.windows, " "));
  if (b.scaled_embeddings) summary += fmt::format("\nattention scale {}", b.attention_scale);
  if (b.layer_norm || b.parallel || !b.gated)
    summary += fmt::format("\nlayer norm {} {} parallel {} {} gated {}", b.layer_norm, b.norm_offset, b.parallel,
                           b.shared_norm, b.gated);
  if (b.attention_sinks) summary += "\nsinks";
  if (b.xielu) summary += "\nxielu";
  if (b.qk_norm_after_rotation) summary += "\nnorms after rotation";
  if (b.clamped.limit > 0) summary += fmt::format("\nclamped {} {}", b.clamped.alpha, b.clamped.limit);
  if (b.mixed) {
    summary += fmt::format("\nmixture {} {} {} {}", b.mixture.experts, b.mixture.active, b.mixture.units,
                           b.mixture.normalised);
    for (const bool mixed : b.mixture.layers) summary += mixed ? " 1" : " 0";
  }
  if (r.kind == RopeKind::kLongRope)
    summary += fmt::format("\nlongrope {} {}", fmt::join(r.short_factors, " "), fmt::join(r.long_factors, " "));
  if (r.partial != 1 || r.query_beta != 0) summary += fmt::format("\nrotary {} {}", r.partial, r.query_beta);
  if (!b.ropes.empty()) {
    const RopeSpec& second = config.second_rope;
    summary += fmt::format("\nsecond rope {} {} {}\nropes", static_cast<int>(second.kind), second.theta, second.factor);
    for (const RopeChoice choice : b.ropes) summary += fmt::format(" {}", static_cast<int>(choice));
  }
  if (b.short_convolution) {
    summary += fmt::format("\nshort convolutions of {} mixers", b.convolution.width);
    for (const Mixer mixer : b.mixers) summary += fmt::format(" {}", static_cast<int>(mixer));
  }
  if (b.gated_delta) {
    const GatedDeltaShape& delta = b.delta;
    summary += fmt::format("\ngated delta {} {} {} {} {} gate {}\nmixers", delta.key_heads, delta.value_heads,
                           delta.key_dim, delta.value_dim, delta.conv_width, b.attention_gate);
    for (const Mixer mixer : b.mixers) summary += fmt::format(" {}", static_cast<int>(mixer));
  }
  if (b.residual_multiplier != 1 || b.embedding_multiplier != 1 || b.logit_scale != 1)
    summary += fmt::format("\nmultipliers {} {} {} {}", b.embedding_multiplier, b.residual_multiplier,
                           b.attention_scale, b.logit_scale);
  ForEach([&](const std::string& name, const TensorView& tensor) {
    const auto original = stored.find(tensor.data);
    const bool converted = original != stored.end();
    const FileTensor whole{static_cast<const std::byte*>(tensor.data), BlockTypeOf(tensor.dtype), tensor.shape};
    const FileTensor& in_file = converted ? original->second : whole;
    summary += fmt::format("\n{} {} {}", name, in_file.TypeName(), fmt::join(tensor.shape, "x"));
    for (const std::span<const std::byte> bytes : in_file.Stored()) {
      const auto size = static_cast<int64_t>(bytes.size()), block = std::min(size, kBlock);
      for (int64_t i = 0; i < kBlocks; ++i)  // from the first to the last of the tensor
        summary += " " + HashHex(bytes.subspan((size - block) * i / (kBlocks - 1), block));
      if (split()) ReleasePages(bytes);  // otherwise they would count as memory of this process
    }
  });
  if (!adapters.empty()) {
    DepthPlan plan;
    for (size_t layer = 0; layer < adapters.size(); ++layer)
      for (const auto& lra : adapters[layer])
        plan.stages.emplace_back(AdapterStage{{static_cast<int64_t>(layer)}, lra});
    summary += fmt::format("\nadapters {}", plan.Fingerprint());
    for (const auto& before : adapters) summary += fmt::format(" {}", before.size());
  }
  return HashHex(summary);
}

void MappedTensors::Add(const FileTensor& tensor) {
  const std::scoped_lock lock(mutex_);
  bytes_[tensor.data] = static_cast<size_t>(tensor.bytes());
}

std::span<const std::byte> MappedTensors::Take(const TensorView& tensor) {
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  const std::scoped_lock lock(mutex_);
  const auto after = bytes_.upper_bound(data);
  if (after == bytes_.begin()) return {};
  const auto found = std::prev(after);
  const std::span<const std::byte> bytes(found->first, found->second);
  if (data >= bytes.data() + bytes.size()) return {};
  bytes_.erase(found);
  return bytes;
}

std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& model, const LoadOptions& options) {
  return LoadWeights(model, IsGguf(model) ? LoadGgufConfig(model) : LoadConfig(model / "config.json"), options);
}

std::shared_ptr<const Weights> LoadWeights(const std::filesystem::path& model, const ModelConfig& said,
                                           const LoadOptions& options) {
  auto weights = std::make_shared<Weights>();
  weights->directory = model;
  weights->config = said;
  const ModelConfig& config = weights->config;
  const auto checkpoint = IsGguf(model) ? OpenGguf(model, config) : OpenSafetensors(model, config);
  weights->config.tied_head = checkpoint->HasTiedHead(said.tied_head);
  weights->storage = checkpoint->Storage();
  NoProgress silent;
  Progress& progress = options.progress != nullptr ? *options.progress : silent;
  int64_t in_blocks = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    in_blocks += std::ssize(checkpoint->BlockTensors(ConfigOfBlock(config, layer, 0)));
  progress.Begin("loading weights, in tensors", in_blocks + 2 + config.block.norm_bias + !config.tied_head);
  if (options.split.processes > 1) {
    const DepthPlan all = DepthPlan::Original(config.layers);
    weights->shares = CutModel(config, options.split.plan ? *options.split.plan : all, options.split.processes);
    weights->share = options.split.process;
  }
  if (options.outline) weights->shares = {ModelShare{0, 0, false, false}};
  const ModelShare mine = weights->split() ? weights->shares[weights->share] : ModelShare{0, config.layers};
  const auto load = [&](const std::string& name, const FileTensor& stored, bool here) {
    TensorView tensor = LoadTensor(fmt::format("{}: tensor {}", model.string(), name), stored, here, options, *weights);
    progress.Advance(1);
    return tensor;
  };
  const auto take = [&](const std::string& name, const std::vector<int64_t>& shape, bool here) {
    return load(name, checkpoint->Take(name, shape), here);
  };
  weights->embedding =
      take("model.embed_tokens.weight", {config.vocab, config.hidden}, mine.first || (mine.last && config.tied_head));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BlockWeights& block = weights->blocks.emplace_back();
    const Halves halves = layer < std::ssize(options.halves) ? options.halves[layer] : checkpoint->HalvesOf(layer);
    const bool said_units = layer < std::ssize(options.mlp_units);
    const ModelConfig of_block =
        ConfigOfBlock(config, layer, said_units ? options.mlp_units[layer] : checkpoint->MlpUnitsOf(layer));
    for (const CheckpointTensor& tensor : checkpoint->BlockTensors(of_block)) {
      if (!Reads(halves, *tensor.parts.front())) continue;
      const bool named = layer < std::ssize(options.file_layers);
      const std::string name = checkpoint->BlockPrefix(named ? options.file_layers[layer] : layer) + tensor.name;
      const FileTensor stored = Placed(checkpoint->Take(name, tensor.shape), tensor);
      Split(load(name, stored, mine.Has(layer)), tensor, of_block, block, *weights);
    }
  }
  weights->final_norm = take("model.norm.weight", {config.hidden}, mine.last);
  if (config.block.norm_bias) weights->final_norm_bias = take("model.norm.bias", {config.hidden}, mine.last);
  weights->head =
      config.tied_head ? weights->embedding : take("lm_head.weight", {config.vocab, config.hidden}, mine.last);
  checkpoint->RefuseLeftOver(config.tied_head, options);
  progress.End();
  return weights;
}

}  // namespace shiftrt
