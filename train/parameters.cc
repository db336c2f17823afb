// SPDX-License-Identifier: Apache-2.0
#include "train/parameters.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"
#include "runtime/parse.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

using Place = Slice::Place;

// "q" of "self_attn.q_proj.weight"; "" of a tensor that is no projection.
std::string_view ProjectionName(const BlockTensor& tensor) {
  if (tensor.kind != BlockTensor::Kind::kMatrix) return "";
  const std::string_view name = std::string_view(tensor.name).substr(std::string_view(tensor.name).find('.') + 1);
  return name.substr(0, name.find('_'));
}

// "self_attn.q_proj" of "self_attn.q_proj.weight".
std::string_view ModuleName(const BlockTensor& tensor) {
  return std::string_view(tensor.name).substr(0, std::string_view(tensor.name).rfind('.'));
}

// The block at a stage, or null.
const BlockStage* BlockAt(const Stage& stage) {
  return stage.Visit([](const BlockStage& block) { return &block; },
                     [](const AdapterStage&) -> const BlockStage* { return nullptr; });
}
const AdapterStage* AdapterAt(const Stage& stage) {
  return stage.Visit([](const BlockStage&) -> const AdapterStage* { return nullptr; },
                     [](const AdapterStage& adapter) { return &adapter; });
}

// "8-10" or "5".
bool ParseRange(std::string_view text, int64_t* first, int64_t* last) {
  const size_t dash = text.find('-');
  if (!ParseNumber(text.substr(0, dash), first)) return false;
  if (dash != text.npos) return ParseNumber(text.substr(dash + 1), last) && *last >= *first;
  *last = *first;
  return true;
}

// The part of a stage's parameters, or of the plan's, that a slice is.
Parameter& At(TrainedParameters& trained, const Slice& slice) {
  if (slice.place == Place::kHead) return trained.head;
  StageParameters& stage = trained.stages[slice.stage];
  switch (slice.place) {
    case Place::kTensor: stage.tensors.resize(BlockTensors().size()); return stage.tensors[slice.tensor];
    case Place::kLoraA: stage.loras.resize(BlockTensors().size()); return stage.loras[slice.tensor].a;
    case Place::kLoraB: stage.loras.resize(BlockTensors().size()); return stage.loras[slice.tensor].b;
    case Place::kAdapterA: return stage.a;
    case Place::kAdapterP: return stage.p;
    case Place::kAdapterQ: return stage.q;
    default: return stage.b;
  }
}

TrainedPart PartOf(Place place) {
  switch (place) {
    case Place::kTensor:
    case Place::kLoraA:
    case Place::kLoraB: return TrainedPart::kMethod;
    case Place::kHead: return TrainedPart::kHead;
    default: return TrainedPart::kAdapters;
  }
}

// The matrix of an adapter that a slice is.
const Matrix<float>& Of(const Lra& lra, Place place) {
  switch (place) {
    case Place::kAdapterA: return lra.a;
    case Place::kAdapterP: return lra.p;
    case Place::kAdapterQ: return lra.q;
    default: return lra.b;
  }
}

// The tensor of a block, or the head, that a slice of kTensor or kHead is in `plan`.
TensorView TensorOf(const Slice& slice, const Weights& weights, const DepthPlan& plan) {
  if (slice.place == Place::kHead) return plan.Output(weights).head;
  return TensorsOf(weights, plan.stages[slice.stage].block()).*BlockTensors()[slice.tensor].member;
}

void Widen(const TensorView& tensor, std::span<float> to) {
  Widen(tensor.dtype, tensor.data, std::ssize(to), to.data());
}

Matrix<float> Copy(const Slice& slice, std::span<const float> values) {
  Matrix<float> matrix(slice.rows, slice.cols);
  std::copy_n(values.begin() + slice.offset, slice.size(), matrix.data());
  return matrix;
}

}  // namespace

std::vector<int64_t> ChooseLayers(const std::string& text, const std::vector<int64_t>& kept) {
  if (text == "all") return kept;
  for (const std::string_view end : {"last:", "first:"}) {
    if (!text.starts_with(end)) continue;
    int64_t count = 0;
    if (!ParseNumber(std::string_view(text).substr(end.size()), &count) || count < 0)
      FailUsage(Field("layers"), "\"{}\" is not of the form {}N", text, end);
    if (count > std::ssize(kept))
      FailUsage(Field("layers"), "{}: the model runs blocks of {} layers only", text, kept.size());
    return end == "last:" ? std::vector<int64_t>(kept.end() - count, kept.end())
                          : std::vector<int64_t>(kept.begin(), kept.begin() + count);
  }
  std::vector<int64_t> chosen;
  for (const std::string_view range : SplitCommas(text)) {
    int64_t first = 0, last = 0;
    if (!ParseRange(range, &first, &last))
      FailUsage(Field("layers"), "\"{}\" is neither last:N, first:N nor all, nor numbers of layers (3,5,8-10)", text);
    for (int64_t layer = first; layer <= last; ++layer) {
      if (!std::binary_search(kept.begin(), kept.end(), layer))
        FailUsage(Field("layers"), "the model runs no block of layer {}; it runs those of {}", layer,
                  fmt::join(kept, ", "));
      chosen.push_back(layer);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

Parameters::Parameters(const Weights& weights, const DepthPlan& plan, const FinetuneSettings& settings)
    : settings_(settings) {
  const ModelConfig& config = weights.config;
  if (settings.method == Method::kLora) AddLora(weights, plan);
  if (settings.method == Method::kPartial || settings.method == Method::kReplacement) AddLayers(weights, plan);
  if (settings.method == Method::kAdapters || settings.adapters) AddAdapters(plan);
  if (settings.head) AddTensor({"lm_head.weight", Place::kHead, 0, 0, config.vocab, config.hidden}, true);
  LayOut();
  if (count_ == 0) FailUsage(Field("method"), "{} with these options leaves nothing to train", Name(settings.method));
}

void Parameters::AddLora(const Weights& weights, const DepthPlan& plan) {
  const ModelConfig& config = weights.config;
  const LoraOptions& lora = settings_.lora;
  const std::span<const BlockTensor> table = BlockTensors();
  const auto named = [](std::string_view name) {
    return [name](const BlockTensor& tensor) { return ProjectionName(tensor) == name; };
  };
  if (lora.rank < 1) FailUsage(Field("lora.rank"), "{} is not a rank", lora.rank);
  for (const std::string& target : lora.targets)
    if (target.empty() || std::none_of(table.begin(), table.end(), named(target)))
      FailUsage(Field("lora.targets"), "\"{}\" is not a projection; known: q, k, v, o, gate, up, down", target);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const BlockStage* block = BlockAt(plan.stages[s]);
    if (block == nullptr) continue;
    RefuseExperts(TensorsOf(weights, *block), block->layer);
    for (size_t row = 0; row < table.size(); ++row) {
      const BlockTensor& tensor = table[row];
      const ModelConfig of_block = ConfigOfBlock(config, block->layer, MlpUnits(TensorsOf(weights, *block)));
      const bool runs =
          Reads(block->halves, tensor) && tensor.kind == BlockTensor::Kind::kMatrix && !tensor.Shape(of_block).empty();
      if (!runs || std::none_of(lora.targets.begin(), lora.targets.end(),
                                [&](const std::string& target) { return named(target)(tensor); }))
        continue;
      const int64_t input = Size(of_block, tensor.input), output = Size(of_block, tensor.output);
      if (lora.rank > std::min(input, output))
        FailUsage(Field("lora.rank"), "{} is above the width of {}, which is {} x {}", lora.rank, ModuleName(tensor),
                  output, input);
      const std::string name = fmt::format("layers.{}.{}", block->layer, ModuleName(tensor));
      AddTensor({name + ".lora_A", Place::kLoraA, s, row, lora.rank, input}, true);
      AddTensor({name + ".lora_B", Place::kLoraB, s, row, output, lora.rank}, true);
    }
  }
}

// A target of the MLP names matrices that a mixture does not have.
void Parameters::RefuseExperts(const BlockWeights& block, int64_t layer) const {
  for (const std::string& target : settings_.lora.targets)
    if (block.IsMixture() && (target == "gate" || target == "up" || target == "down"))
      FailUsage(Field("lora.targets"),
                "{}: block {} has a mixture of experts, which are not trained; these go with it: q, k, v, o", target,
                layer);
}

void Parameters::AddLayers(const Weights& weights, const DepthPlan& plan) {
  const std::vector<int64_t> layers = ChooseLayers(settings_.layers, plan.KeptLayers());
  const std::span<const BlockTensor> table = BlockTensors();
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const BlockStage* block = BlockAt(plan.stages[s]);
    if (block == nullptr || !std::binary_search(layers.begin(), layers.end(), block->layer)) continue;
    if (RunsMlp(block->halves) && TensorsOf(weights, *block).IsMixture())
      FailUsage(Field("method"),
                "{}: block {} has a mixture of experts, whose router and experts are not trained; these are trained: "
                "adapters (method adapters), and attention (method lora, targets q, k, v and o)",
                Name(settings_.method), block->layer);
    ForEachTensor(TensorsOf(weights, *block), block->halves, [&](const BlockTensor& tensor, const TensorView& stored) {
      if (tensor.kind == BlockTensor::Kind::kConstant) return;
      const std::vector<int64_t>& shape = stored.shape;
      const bool matrix = shape.size() == 2;
      AddTensor(
          {fmt::format("layers.{}.{}", block->layer, tensor.name), Place::kTensor, s,
           static_cast<size_t>(&tensor - table.data()), matrix ? shape[0] : 1, matrix ? shape[1] : stored.elements()},
          matrix);
    });
  }
}

void Parameters::AddAdapters(const DepthPlan& plan) {
  int64_t index = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const AdapterStage* adapter = AdapterAt(plan.stages[s]);
    if (adapter == nullptr) continue;
    const std::string name = fmt::format("adapters.{}.", index++);
    const Lra& lra = *adapter->lra;
    const int64_t d = lra.hidden(), r = lra.rank();
    if (!lra.low_rank()) AddTensor({name + "A", Place::kAdapterA, s, 0, d, d}, true);
    if (lra.low_rank() && r > 0) {  // with rank 0 it is a bias alone
      AddTensor({name + "P", Place::kAdapterP, s, 0, d, r}, true);
      AddTensor({name + "Q", Place::kAdapterQ, s, 0, r, d}, true);
    }
    AddTensor({name + "b", Place::kAdapterB, s, 0, 1, d}, false);
  }
  if (index == 0)
    FailUsage(Field("adapters"),
              "the model has no adapters to train; `shiftrt run --lra 64 --save DIR` makes a model with them, "
              "or with --no-gate where it leaves the repair out");
}

void Parameters::AddTensor(const Slice& slice, bool decays) { (decays ? slices_ : undecayed_).push_back(slice); }

void Parameters::LayOut() {
  const size_t decaying = slices_.size();
  slices_.insert(slices_.end(), undecayed_.begin(), undecayed_.end());
  undecayed_.clear();
  for (size_t i = 0; i < slices_.size(); ++i) {
    Slice& slice = slices_[i];
    slice.offset = count_;
    count_ += slice.size();
    const ParameterRange range = {PartOf(slice.place), i < decaying, slice.offset, count_};
    if (!ranges_.empty() && ranges_.back().part == range.part && ranges_.back().decays == range.decays)
      ranges_.back().end = count_;
    else
      ranges_.push_back(range);
  }
}

std::string Parameters::Summary(const Weights& weights, const DepthPlan& plan) const {
  const int64_t model = plan.Parameters(weights);
  return fmt::format(
      "{} parameters in {} tensors ({:.2f}% of the model's {:.1f} M), {:.1f} MB with gradients and moments", count_,
      slices_.size(), 100 * static_cast<double>(count_) / static_cast<double>(model), static_cast<double>(model) / 1e6,
      static_cast<double>(bytes()) / 1e6);
}

std::vector<float> Parameters::Initial(const Weights& weights, const DepthPlan& plan) const {
  std::vector<float> values(count_, 0.0f);
  Random seeds(settings_.seed);
  for (const Slice& slice : slices_) {
    const std::span<float> to = std::span(values).subspan(slice.offset, slice.size());
    switch (slice.place) {
      case Place::kLoraA: {
        Random random(seeds.Next());
        const double bound = 1 / std::sqrt(static_cast<double>(slice.cols));
        for (float& value : to) value = static_cast<float>(bound * (2 * random.Uniform() - 1));
        break;
      }
      case Place::kLoraB: break;
      case Place::kHead:
      case Place::kTensor: Widen(TensorOf(slice, weights, plan), to); break;
      default: {
        const Matrix<float>& from = Of(*plan.stages[slice.stage].adapter().lra, slice.place);
        std::copy(from.span().begin(), from.span().end(), to.begin());
      }
    }
  }
  return values;
}

TrainedParameters Parameters::Views(const DepthPlan& plan, const DeviceMemory& values,
                                    const DeviceMemory& gradients) const {
  TrainedParameters trained;
  trained.stages.resize(plan.stages.size());
  for (const Slice& slice : slices_)
    At(trained, slice) = {values.Part(slice.offset, slice.rows, slice.cols),
                          gradients.Part(slice.offset, slice.rows, slice.cols)};
  const LoraOptions& lora = settings_.lora;
  trained.lora.scale = static_cast<float>(lora.alpha / static_cast<double>(lora.rank));
  trained.lora.dropout = static_cast<float>(lora.dropout);
  trained.lora.seed = settings_.seed;
  return trained;
}

DepthPlan Parameters::Tuned(const Weights& weights, const DepthPlan& plan, std::span<const float> values) const {
  const auto part = [&](const Slice& slice) { return values.subspan(slice.offset, slice.size()); };
  DepthPlan tuned = plan;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    std::vector<const Slice*> of_stage;
    for (const Slice& slice : slices_)
      if (slice.stage == s && slice.place != Place::kHead && slice.place != Place::kLoraA &&
          slice.place != Place::kLoraB)
        of_stage.push_back(&slice);
    if (of_stage.empty()) continue;
    if (const AdapterStage* adapter = AdapterAt(plan.stages[s])) {
      const Lra& before = *adapter->lra;
      Lra lra{before.a.Clone(), before.p.Clone(), before.q.Clone(), before.b.Clone(), before.norm.Clone()};
      for (const Slice* slice : of_stage)
        std::copy_n(values.begin() + slice->offset, slice->size(), Of(lra, slice->place).data());
      tuned.stages[s] = AdapterStage{adapter->parts, std::make_shared<const Lra>(std::move(lra))};
      continue;
    }
    BlockStage block = plan.stages[s].block();
    auto own = std::make_shared<OwnBlock>(weights, block);
    for (const Slice* slice : of_stage) own->Replace(BlockTensors()[slice->tensor].member, part(*slice));
    block.own = OwnBlock::Share(std::move(own));
    tuned.stages[s] = std::move(block);
  }
  for (const Slice& slice : slices_) {
    if (slice.place != Place::kHead) continue;
    auto output = std::make_shared<OwnOutput>(weights, plan);
    output->Replace(&OutputWeights::head, part(slice));
    tuned.output = OwnOutput::Share(std::move(output));
  }
  return tuned;
}

double Parameters::RoundingError(const Weights& weights, const DepthPlan& plan, std::span<const float> values,
                                 const DepthPlan& tuned) const {
  shiftrt::RoundingError error;
  for (const Slice& slice : slices_)
    if (slice.place == Place::kTensor || slice.place == Place::kHead)
      error.Add(values.subspan(slice.offset, slice.size()), TensorOf(slice, weights, plan),
                TensorOf(slice, weights, tuned));
  return error.share();
}

std::optional<Lora> Parameters::Factors(const DepthPlan& plan, std::span<const float> values) const {
  if (settings_.method != Method::kLora) return std::nullopt;
  Lora lora;
  lora.rank = settings_.lora.rank;
  lora.alpha = settings_.lora.alpha;
  for (const Slice& slice : slices_) {
    if (slice.place == Place::kLoraA) {
      // Its b is the next slice.
      const Slice& b = *(&slice + 1);
      lora.factors.push_back({plan.stages[slice.stage].block().layer, &BlockTensors()[slice.tensor],
                              Copy(slice, values), Copy(b, values)});
    }
  }
  return lora;
}

}  // namespace shiftrt
