// SPDX-License-Identifier: Apache-2.0
#include "engine/layer_loop.h"

#include <algorithm>
#include <utility>

#include "runtime/check.h"

namespace shiftrt {

namespace {

bool IsBlock(const Stage& stage, int64_t layer) {
  return stage.Visit([&](const BlockStage& block) { return block.layer == layer; },
                     [](const AdapterStage&) { return false; });
}

std::span<const Stage> UpToTheLastTap(std::span<const Stage> stages, const TapSet& taps) {
  const auto tapped = [&](const Stage& stage) {
    return stage.Visit([&](const BlockStage& block) { return taps.HasOn(block.layer); },
                       [](const AdapterStage&) { return false; });
  };
  while (!stages.empty() && !tapped(stages.back())) stages = stages.first(stages.size() - 1);
  return stages;
}

class LayerLoop {
 public:
  LayerLoop(Layers& h, const TapSet& taps, const LayerCall& call)
      : h_(h),
        taps_(taps),
        call_(call),
        stops_(call.taps_only && !taps.Has(call.next, TapPoint::kInput)),
        stages_(stops_ ? UpToTheLastTap(call.stages, taps) : call.stages) {}

  void Run() {
    if (call_.residual != nullptr) {
      h_.Resume(*call_.residual);
    } else {
      h_.Embed();
    }
    for (size_t i = 0; i < stages_.size(); ++i) {
      h_.BeginStage(i, stages_[i]);
      stages_[i].Visit([&](const BlockStage& block) { RunBlock(block, i + 1 == stages_.size()); },
                       [&](const AdapterStage& adapter) {
                         if (adapter.parts.empty()) EnterBlock(BlockBehind(i));
                         h_.Adapter(adapter);
                       });
    }
    Tapped(call_.next, TapPoint::kInput, [&] { return h_.Stream(); });
    if (call_.draw != nullptr) h_.Choose();
  }

 private:
  // The layer of the block that follows a stage.
  int64_t BlockBehind(size_t stage) const {
    for (size_t i = stage + 1; i < stages_.size(); ++i) {
      const int64_t layer = stages_[i].Visit([](const BlockStage& block) { return block.layer; },
                                             [](const AdapterStage&) { return int64_t{-1}; });
      if (layer >= 0) return layer;
    }
    return -1;
  }

  // Begins a block with adapters of its own (Weights::adapters), which count as a part of it: its input is the stream
  // before them, and its update has theirs.
  void EnterBlock(int64_t layer) {
    if (std::exchange(entered_, true)) return;
    Tapped(layer, TapPoint::kInput, [&] { return h_.Stream(); });
    if (taps_.Has(layer, TapPoint::kUpdate)) before_.Set(h_.Stream());
  }

  // Returns the sum of what the block that runs and its adapters have added to the stream.
  Rows UpdateWithAdapters() {
    update_.Set(h_.Stream());
    update_.Subtract(before_.rows());
    return update_.rows();
  }

  void RunBlock(const BlockStage& block, bool last) {
    const int64_t layer = block.layer;
    const auto done = [&](TapPoint point) { return stops_ && last && !taps_.HasAfter(layer, point); };
    const bool with_adapters = std::exchange(entered_, false);
    if (!with_adapters) Tapped(layer, TapPoint::kInput, [&] { return h_.Stream(); });
    if (done(TapPoint::kInput)) return;
    if (RunsAttention(block.halves)) {
      h_.Attention(block, slot_++);
      Tapped(layer, TapPoint::kHeads, [&] { return h_.Heads(); });
      Tapped(layer, TapPoint::kAttention, [&] { return h_.Update(block, Halves::kAttention); });
    }
    if (done(TapPoint::kAttention)) return;
    if (RunsMlp(block.halves)) {
      h_.Mlp(block);
      Tapped(layer, TapPoint::kActivation, [&] { return h_.Activation(); });
      Tapped(layer, TapPoint::kMlp, [&] { return h_.Update(block, Halves::kMlp); });
    }
    Tapped(layer, TapPoint::kUpdate,
           [&] { return with_adapters ? UpdateWithAdapters() : h_.Update(block, block.halves); });
    Tapped(layer, TapPoint::kOutput, [&] { return h_.Stream(); });
  }

  // Computes the rows only if a tap is registered for them.
  template <typename MakeRows>
  void Tapped(int64_t layer, TapPoint point, const MakeRows& rows) {
    if (taps_.Has(layer, point)) taps_.Fire(layer, point, rows(), call_.batch);
  }

  Layers& h_;
  const TapSet& taps_;
  const LayerCall& call_;
  bool stops_;  // after the last tap, which is not the stream after all stages
  std::span<const Stage> stages_;
  int64_t slot_ = 0;          // the cache's slot for the next attention
  bool entered_ = false;      // adapters of the next block have run
  KeptRows before_, update_;  // the stream before them, and the update of the block with them
};

}  // namespace

bool TapSet::Has(int64_t layer, TapPoint point) const {
  return std::any_of(taps_.begin(), taps_.end(),
                     [&](const Tap& tap) { return tap.layer == layer && tap.point == point; });
}

bool TapSet::HasOn(int64_t layer) const {
  return std::any_of(taps_.begin(), taps_.end(), [&](const Tap& tap) { return tap.layer == layer; });
}

bool TapSet::HasFrom(int64_t layer) const {
  return std::any_of(taps_.begin(), taps_.end(), [&](const Tap& tap) { return tap.layer >= layer; });
}

bool TapSet::HasAfter(int64_t layer, TapPoint point) const {
  return std::any_of(taps_.begin(), taps_.end(),
                     [&](const Tap& tap) { return tap.layer == layer && tap.point > point; });
}

void TapSet::Fire(int64_t layer, TapPoint point, const Rows& rows, const Batch& batch) const {
  for (const Tap& tap : taps_)
    if (tap.layer == layer && tap.point == point) tap.sink(rows, batch);
}

void TapSet::Check(std::span<const Stage> stages, int64_t layers, bool everything) const {
  for (const Tap& tap : taps_) {
    if (tap.layer == layers && tap.point == TapPoint::kInput) continue;
    bool runs = false, attention = false, mlp = false;
    for (const Stage& stage : stages) {
      if (!IsBlock(stage, tap.layer)) continue;
      runs = true;
      attention |= RunsAttention(stage.block().halves);
      mlp |= RunsMlp(stage.block().halves);
    }
    shiftrt::Check(runs || !everything, "a tap on layer {}, which this depth plan does not run", tap.layer);
    const bool of_attention = tap.point == TapPoint::kHeads || tap.point == TapPoint::kAttention;
    const bool of_mlp = tap.point == TapPoint::kActivation || tap.point == TapPoint::kMlp;
    shiftrt::Check(!runs || attention || !of_attention,
                   "a tap on the attention of layer {}, of which this depth plan runs the MLP alone", tap.layer);
    shiftrt::Check(!runs || mlp || !of_mlp,
                   "a tap on the MLP of layer {}, of which this depth plan runs the attention alone", tap.layer);
  }
}

void RunLayers(Layers& h, const TapSet& taps, const LayerCall& call) { LayerLoop(h, taps, call).Run(); }

Rows RunLayers(Backend& backend, const TapSet& taps, const LayerCall& call) {
  return backend.Run(call, [&](Layers& h) { RunLayers(h, taps, call); });
}

}  // namespace shiftrt
