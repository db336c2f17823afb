// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/influence.h"

#include <utility>

#include "runtime/check.h"
#include "shift/criteria/probes.h"

namespace shiftrt {

InfluenceProbe::InfluenceProbe(const CriterionInput& input, Progress&)
    : InfluenceProbe(DepthPlan::Original(input.weights->config.layers).KeptLayers(), input.weights->config.layers) {}

InfluenceProbe::InfluenceProbe(std::vector<int64_t> kept, int64_t layers) : depths_(std::move(kept)) {
  depths_.push_back(layers);
}

void InfluenceProbe::Want(int64_t window) {
  Check(window >= 1 && window <= blocks(), "a window of {} blocks in a model of {}", window, blocks());
  settled_.emplace(window, InfluenceStatistics(blocks() - window + 1));
}

void InfluenceProbe::Begin(Tally& tally, int64_t, int64_t) {
  heard_ = settled_;
  devices_.clear();
  products_ = tally.MakeProducts();
  processes_ = &tally.processes();
  round_.Take();
}

std::vector<Tap> InfluenceProbe::Taps() {
  OnDevice& device = devices_.emplace_back();
  device.recent.resize(heard_.rbegin()->first + 1);
  std::vector<Tap> taps;
  for (int64_t block = 0; block <= blocks(); ++block)
    taps.push_back({depths_[block], TapPoint::kInput,
                    [this, &device, block](const Rows& h, const Batch& batch) { Take(device, block, h, batch); }});
  return taps;
}

// Every window that ends where `block` would begin.
void InfluenceProbe::Take(OnDevice& device, int64_t block, const Rows& h, const Batch& batch) {
  device.Before(block).Set(h);
  for (auto& [window, statistics] : heard_) {
    if (block < window) continue;
    products_->Start(device.Before(block - window).rows(), device.Before(block).rows());
    if (processes_->alone()) {
      statistics.Add(block - window, products_->Take(), batch.offsets);
    } else {
      round_.Put(window).Put(block - window).PutAll(products_->Take()).PutAll(batch.offsets);
    }
  }
}

// Every process adds the products of all batches, in their order.
void InfluenceProbe::EndRound(int64_t) {
  if (processes_->alone()) return;
  for (const Bytes& batch : processes_->Gather(round_.Take())) {
    for (Unpacker in(batch); !in.done();) {
      const auto window = in.Get<int64_t>(), block = in.Get<int64_t>();
      const auto products = in.GetAll<RowProducts>();
      heard_.at(window).Add(block, products, in.GetAll<int64_t>());
    }
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
