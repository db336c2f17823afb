// SPDX-License-Identifier: Apache-2.0
#include "engine/ops_layers.h"

#include <utility>

#include "engine/adapter.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

const TrainedParameters kNothingTrained;
const StageParameters kNothingOfAStage;

}  // namespace

DeviceMatrix<float> Grown::Get(Ops& ops, int64_t count) {
  if (count > memory_.count()) {
    memory_ = {};  // before the larger one is asked for
    memory_ = ops.Allocate(count);
  }
  return memory_.matrix(1, count);
}

OpsLayers::OpsLayers(std::unique_ptr<Ops> ops, std::shared_ptr<const Weights> weights, bool tapped)
    : ops_(std::move(ops)), weights_(std::move(weights)), tapped_(tapped), trained_(&kNothingTrained) {}

void OpsLayers::Begin(const LayerCall& call, const Pass& pass) {
  ops_->Begin(call);
  call_ = pass;
  h_ = pass.stream;
}

TrainedStage OpsLayers::StageAt(size_t index, const Stage& stage) const {
  return {index, stage, trained_->stages.empty() ? kNothingOfAStage : trained_->stages[index]};
}

template <typename StageRun>
void OpsLayers::Place(StageRun& run, int64_t tokens, DeviceMatrix<float> kept) {
  Arena measured, measured_kept;
  run.LayOut({!kept.empty() ? measured_kept : measured, measured}, tokens);
  Arena scratch(Scratch(measured.peak())), own(kept);
  run.LayOut({!kept.empty() ? own : scratch, scratch}, tokens);
}

int64_t OpsLayers::KeptFloats(size_t index, const Stage& stage, int64_t tokens) const {
  return stage.Visit(
      [&](const BlockStage&) {
        Arena kept, scratch;
        BlockPass(PassOf(true), StageAt(index, stage), Keeping::kActivations).LayOut({kept, scratch}, tokens);
        return kept.peak();
      },
      [](const AdapterStage&) { return int64_t{0}; });
}

void OpsLayers::BeginStage(size_t index, const Stage& stage) {
  index += call_.first;
  stage_.emplace(StageAt(index, stage));
  DeviceMatrix<float> kept;
  if (call_.store != nullptr) {
    const ActivationStore::Kept& keep = call_.store->stages[index];
    if (!keep.after.StartsAt(h_)) ops_->Copy(h_, keep.after);
    h_ = keep.after;
    kept = keep.activations;
  }
  const Keeping keeping = !kept.empty() ? Keeping::kActivations : tapped_ ? Keeping::kUpdates : Keeping::kNothing;
  stage.Visit([&](const BlockStage&) { Place(block_.emplace(PassOf(call_.dropout), *stage_, keeping), h_.rows, kept); },
              [](const AdapterStage&) {});
}

void OpsLayers::Resume(const Rows& residual) {
  DeviceMemory copy;
  const DeviceMatrix<const float> from = ops_->Here(residual, copy);
  if (!from.StartsAt(h_)) ops_->Copy(from, h_);
}

void OpsLayers::Adapter(const AdapterStage&) {
  AdapterPass adapter(PassOf(call_.dropout), *stage_);
  Place(adapter, h_.rows);
  adapter.Forward(h_);
}

// The sum of both updates overwrites the attention's, which no later tap reads.
Rows OpsLayers::Update(const BlockStage&, Halves halves) {
  if (halves == Halves::kMlp) return ops_->AsRows(block_->mlp_update());
  if (halves == Halves::kBoth) ops_->AddTo(block_->mlp_update(), block_->attention_update());
  return ops_->AsRows(block_->attention_update());
}

void OpsLayers::Choose() { Fail("these layers do not choose tokens"); }

void OpsLayers::Backward(size_t index, const Stage& stage, const StreamGradient& stream, DeviceMatrix<float> kept) {
  const TrainedStage trained = StageAt(index, stage);
  const StagePass pass = PassOf(/*dropout=*/true);
  stage.Visit(
      [&](const BlockStage&) {
        BlockPass block(pass, trained, Keeping::kActivations);
        Place(block, stream.input.rows, kept);
        if (kept.empty()) {
          block.Recompute(stream.input);
        } else {
          block.NormInputs(stream.input);
        }
        block.Backward(stream);
      },
      [&](const AdapterStage&) {
        AdapterPass adapter(pass, trained);
        Place(adapter, stream.input.rows);
        adapter.Backward(stream);
      });
}

}  // namespace shiftrt
