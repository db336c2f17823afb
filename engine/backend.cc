// SPDX-License-Identifier: Apache-2.0
#include "engine/backend.h"

#include <algorithm>

#include "models/block_tensors.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

// The tensors of the plan's own have the shapes of the model, with the number of units that up_proj has.
void CheckShapes(const Weights& weights, const BlockStage& block) {
  if (block.own == nullptr) return;
  const ModelConfig config = ConfigOfBlock(weights.config, block.layer, MlpUnits(*block.own));
  ForEachTensor(*block.own, block.halves, [&](const BlockTensor& row, const TensorView& tensor) {
    const std::vector<int64_t> shape = row.Shape(config);
    Check(shape.empty() || tensor.shape == shape, "depth plan: {} of block {} has shape [{}], expected [{}]", row.name,
          block.layer, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  });
}

}  // namespace

void CheckDeviceTakes(const Context& context, const Weights& weights) {
  const BlockSpec& block = weights.config.block;
  const char* const missing = block.qk_norm_after_rotation ? "norms of rotated queries and keys"
                              : block.xielu                ? "the activation xIELU"
                              : block.short_convolution    ? "short convolutions"
                                                           : nullptr;
  if (context.device != Device::kCuda || missing == nullptr) return;
  Fail("{}: the family {} has {}, which no kernel computes on a GPU; run it with --device cpu",
       weights.directory.string(), weights.config.family, missing);
}

void CheckStages(const Weights& weights, std::span<const Stage> stages) {
  const ModelConfig& config = weights.config;
  BlockStage last{.layer = -1};
  for (const Stage& stage : stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          // The halves of a layer may be two stages.
          const bool second_half =
              block.layer == last.layer && last.halves == Halves::kAttention && block.halves == Halves::kMlp;
          Check((block.layer > last.layer || second_half) && block.layer < config.layers,
                "depth plan: block {} after block {} in a model of {} layers", block.layer, last.layer, config.layers);
          const char* const missing = MissingTensor(weights, block);
          Check(missing == nullptr, "depth plan: block {} has no {}, because the model has one half of it alone",
                block.layer, missing != nullptr ? missing : "");
          CheckShapes(weights, block);
          last = block;
        },
        [&](const AdapterStage& adapter) {
          Check(adapter.lra->hidden() == config.hidden,
                "depth plan: an adapter of hidden size {} in a model of hidden size {}", adapter.lra->hidden(),
                config.hidden);
        });
  }
}

void CheckLengths(const ModelConfig& config, const Batch& batch) {
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t parent = batch.parents[s], before = parent < 0 ? 0 : lengths[parent];
    lengths.push_back(before + batch.offsets[s + 1] - batch.offsets[s]);
    Check(lengths[s] <= config.max_positions, "a sequence of {} tokens exceeds the model's context of {}", lengths[s],
          config.max_positions);
  }
}

CallLayout LayOut(const LayerCall& call) {
  CallLayout layout;
  std::vector<int64_t>& rows = layout.joined_rows;
  const Batch& batch = call.batch;
  std::vector<size_t> roots;  // the first sequence of the one, its parent, and so on
  for (size_t s = 0; s < batch.parents.size(); ++s) {
    const Continued continued = call.continued.empty() ? Continued() : call.continued[s];
    CallLayout::Sequence sequence{batch.offsets[s], batch.offsets[s + 1] - batch.offsets[s], continued.past, -1};
    roots.push_back(batch.parents[s] >= 0 ? roots[batch.parents[s]] : s);
    if (batch.parents[s] >= 0) {
      CallLayout::Sequence& parent = layout.sequences[batch.parents[s]];
      parent.is_parent = true;
      sequence.generation = parent.generation + 1;
      sequence.past = parent.past + parent.count;
      sequence.joined = std::ssize(rows);
      for (int64_t i = 0; i < sequence.past; ++i)
        rows.push_back(parent.joined < 0 ? parent.begin + i : rows[parent.joined + i]);
      for (int64_t i = 0; i < sequence.count; ++i) rows.push_back(sequence.begin + i);
    }
    layout.sequences.push_back(sequence);
    int64_t& reach = layout.sequences[roots.back()].reach;
    reach = std::max(reach, continued.cache != nullptr ? continued.cache->capacity : sequence.past + sequence.count);
  }
  for (size_t s = 0; s < roots.size(); ++s) layout.sequences[s].reach = layout.sequences[roots[s]].reach;
  return layout;
}

}  // namespace shiftrt
