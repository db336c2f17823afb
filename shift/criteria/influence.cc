// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/influence.h"

#include "runtime/check.h"
#include "shift/criteria/probes.h"

namespace shiftrt {

InfluenceProbe::InfluenceProbe(const CriterionInput& input, Progress&) : layers_(input.weights->config.layers) {}

void InfluenceProbe::Want(int64_t window) {
  Check(window >= 1 && window <= layers_, "a window of {} blocks in a model of {}", window, layers_);
  settled_.emplace(window, InfluenceStatistics(layers_ - window + 1));
}

void InfluenceProbe::Begin(Tally& tally, int64_t, int64_t) {
  heard_ = settled_;
  devices_.clear();
  products_ = tally.MakeProducts();
}

std::vector<Tap> InfluenceProbe::Taps() {
  OnDevice& device = devices_.emplace_back();
  device.recent.resize(heard_.rbegin()->first + 1);
  std::vector<Tap> taps;
  for (int64_t layer = 0; layer <= layers_; ++layer)
    taps.push_back({layer, TapPoint::kInput,
                    [this, &device, layer](const Rows& h, const Batch& batch) { Take(device, layer, h, batch); }});
  return taps;
}

// Every window that ends where block `layer` would begin.
void InfluenceProbe::Take(OnDevice& device, int64_t layer, const Rows& h, const Batch& batch) {
  device.Before(layer).Set(h);
  for (auto& [window, statistics] : heard_) {
    if (layer < window) continue;
    products_->Start(device.Before(layer - window).rows(), device.Before(layer).rows());
    statistics.Add(layer - window, products_->Take(), batch.offsets);
  }
}

void InfluenceProbe::Settle(int64_t) { settled_ = heard_; }

// Later groups of other probes need the memory.
void InfluenceProbe::End() {
  devices_.clear();
  products_.reset();
}

namespace {

Selection Blocks(const CriterionTask& task, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickLayers(scores, task.count, task.spec.keep_first, task.spec.keep_last);
  selection.scores = std::move(scores);
  return selection;
}

Selection Window(const CriterionTask& task, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickWindow(scores, task.count, task.spec.keep_first, task.spec.keep_last);
  selection.scores = std::move(scores);
  selection.window = task.count;
  return selection;
}

const InfluenceStatistics& Found(const CriterionTask& task, int64_t window) {
  return task.probes.Get<InfluenceProbe>().Found(window);
}

}  // namespace

void PlugBlocks(const CriterionTask& task) { task.probes.Get<InfluenceProbe>().Want(1); }

void PlugWindow(const CriterionTask& task) { task.probes.Get<InfluenceProbe>().Want(task.count); }

Selection SelectByBlockInfluence(const CriterionTask& task) { return Blocks(task, Found(task, 1).Scores()); }

Selection SelectByFrobenius(const CriterionTask& task) { return Blocks(task, Found(task, 1).FrobeniusScores()); }

Selection SelectByAngle(const CriterionTask& task) { return Window(task, Found(task, task.count).AngularScores()); }

Selection SelectByStreamline(const CriterionTask& task) { return Window(task, Found(task, task.count).Scores()); }

}  // namespace shiftrt
