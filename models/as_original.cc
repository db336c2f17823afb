// SPDX-License-Identifier: Apache-2.0
#include "models/as_original.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/plan_checkpoint.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

bool IsOriginal(const Model& saved) { return saved.plan == DepthPlan::Original(saved.weights->config.layers); }

// The adapters of a plan, by the block that they stand before; the last entry has those after the last block.
std::vector<std::vector<AdapterStage>> AdaptersByBlock(const DepthPlan& plan) {
  std::vector<std::vector<AdapterStage>> adapters(1);
  for (const Stage& stage : plan.stages)
    stage.Visit([&](const BlockStage&) { adapters.emplace_back(); },
                [&](const AdapterStage& adapter) { adapters.back().push_back(adapter); });
  return adapters;
}

void CheckTaken(const Model& saved) {
  const auto refuse = [&](bool given, const char* why, const char* instead = "give the model it was made from") {
    if (given) FailUsage(Field("model"), "{} cannot be pruned further, because {}; {}", saved.name, why, instead);
  };
  refuse(saved.renumbered, "it was saved with its weights and has adapters",
         "save it without, so that it refers to the original");
  refuse(saved.plan.half_blocks() > 0, "of some blocks one half runs");
  refuse(saved.plan.blocks() == 0, "it has no block");
  refuse(!AdaptersByBlock(saved.plan).back().empty(), "an adapter stands after its last block");
  refuse(saved.weights->split(), "it is split over processes", "leave the split out");
}

// Returns `tensors`, which may be views of what `before` keeps alive.
template <typename Tensors>
std::shared_ptr<const Tensors> Keeping(const std::shared_ptr<const Tensors>& tensors,
                                       const std::shared_ptr<const Tensors>& before) {
  if (!before) return tensors;
  auto both = std::make_shared<const std::pair<std::shared_ptr<const Tensors>, std::shared_ptr<const Tensors>>>(tensors,
                                                                                                                before);
  return {std::move(both), tensors.get()};
}

}  // namespace

Model AsOriginal(const Model& saved) {
  if (IsOriginal(saved)) return saved;
  CheckTaken(saved);
  auto weights = std::make_shared<Weights>(KeptWeights(*saved.weights, saved.plan));
  weights->embedding = saved.weights->embedding;  // a decoder looks tokens up in the model's table
  weights->stored = saved.weights->stored;
  weights->storage.push_back(saved.weights);
  weights->storage.push_back(std::make_shared<const DepthPlan>(saved.plan));
  if (!saved.plan.Adapters().empty()) {
    for (const std::vector<AdapterStage>& before : AdaptersByBlock(saved.plan)) {
      std::vector<std::shared_ptr<const Lra>>& adapters = weights->adapters.emplace_back();
      for (const AdapterStage& adapter : before) adapters.push_back(adapter.lra);
    }
    weights->adapters.pop_back();  // those after the last block, of which there are none
  }
  Model original = saved;
  original.plan = DepthPlan::Original(weights->config.layers);
  original.weights = std::move(weights);
  original.lora = nullptr;
  original.unmerged.reset();
  original.removed.clear();
  return original;
}

DepthPlan OverSaved(const DepthPlan& plan, const Model& saved) {
  if (IsOriginal(saved)) return plan;
  const std::vector<const BlockStage*> blocks = saved.plan.Blocks();
  const std::vector<std::vector<AdapterStage>> adapters = AdaptersByBlock(saved.plan);
  DepthPlan over;
  over.output = plan.output ? Keeping(plan.output, saved.plan.output) : saved.plan.output;
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          for (const AdapterStage& adapter : adapters[block.layer]) over.stages.emplace_back(adapter);
          const BlockStage& kept = *blocks[block.layer];
          over.stages.emplace_back(
              BlockStage{kept.layer, block.halves, block.own ? Keeping(block.own, kept.own) : kept.own});
        },
        [&](const AdapterStage& adapter) {
          std::set<int64_t> places;
          const auto add = [&](std::span<const BlockPart> parts) {
            for (const BlockPart& part : parts)
              for (int64_t place = part.begin(); place < part.end(); ++place) places.insert(place);
          };
          add(NumbersInSaved(adapter.parts, saved));
          for (const BlockPart& part : adapter.parts)
            for (const AdapterStage& before : adapters[part.layer]) add(before.parts);
          over.stages.emplace_back(
              AdapterStage{PartsAt(std::vector<int64_t>(places.begin(), places.end())), adapter.lra});
        });
  }
  return over;
}

std::vector<BlockPart> NumbersInSaved(std::span<const BlockPart> parts, const Model& saved) {
  std::vector<BlockPart> numbered(parts.begin(), parts.end());
  if (IsOriginal(saved)) return numbered;
  const std::vector<int64_t> kept = saved.plan.KeptLayers();
  for (BlockPart& part : numbered) part.layer = kept[part.layer];
  return numbered;
}

std::vector<BlockPart> NumbersInOriginal(std::span<const BlockPart> parts, const Model& saved) {
  std::vector<BlockPart> numbered(parts.begin(), parts.end());
  if (IsOriginal(saved)) return numbered;
  const std::vector<int64_t> kept = saved.plan.KeptLayers();
  for (BlockPart& part : numbered) {
    const auto at = std::lower_bound(kept.begin(), kept.end(), part.layer);
    if (at == kept.end() || *at != part.layer)
      FailUsage(Field("prune"), "{} has no block {}: it has the blocks {}", saved.name, part.layer,
                fmt::join(kept, ", "));
    part.layer = at - kept.begin();
  }
  return numbered;
}

}  // namespace shiftrt
