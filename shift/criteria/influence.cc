// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/influence.h"

#include <algorithm>
#include <utility>

#include "runtime/check.h"
#include "shift/criteria/probes.h"

namespace shiftrt {

InfluenceProbe::InfluenceProbe(const CriterionInput& input, Progress&)
    : InfluenceProbe(DepthPlan::Original(input.weights->config.layers).KeptLayers(), input.weights->config.layers) {}

InfluenceProbe::InfluenceProbe(std::vector<int64_t> kept, int64_t layers) : depths_(std::move(kept)) {
  depths_.push_back(layers);
}

void InfluenceProbe::Want(Unit unit, int64_t count) {
  const int64_t units = UnitsOf(unit, blocks());
  Check(count >= 1 && count <= units, "a window of {} of {} units", count, units);
  completed_.emplace(std::pair(unit, count), InfluenceStatistics(units - count + 1));
}

void InfluenceProbe::Begin(Collector& collector, int64_t, int64_t) {
  running_ = completed_;
  devices_.clear();
  products_ = collector.MakeProducts();
  records_.emplace(collector, [this](const Record& record) {
    running_.at({record.unit, record.count}).Add(record.first, record.products, record.offsets);
  });
}

std::vector<Tap> InfluenceProbe::Taps() {
  OnDevice& device = devices_.emplace_back();
  int64_t longest = 0;
  bool halves = false;
  for (const auto& [window, statistics] : running_) {
    longest = std::max(longest, window.second * Step(window.first));
    halves |= window.first == Unit::kHalf;
  }
  device.recent.resize(longest + 1);
  std::vector<Tap> taps;
  for (int64_t block = 0; block <= blocks(); ++block) {
    taps.push_back({depths_[block], TapPoint::kInput, [this, &device, block](const Rows& h, const Batch& batch) {
                      device.Before(2 * block).Set(h);
                      Take(device, 2 * block, batch);
                    }});
    if (!halves || block == blocks()) continue;
    taps.push_back(
        {depths_[block], TapPoint::kAttention, [this, &device, block](const Rows& update, const Batch& batch) {
           KeptRows& after = device.Before(2 * block + 1);
           after.Set(device.Before(2 * block).rows());
           after.Add(update);
           Take(device, 2 * block + 1, batch);
         }});
  }
  return taps;
}

// Records every window that ends at `place`. Where a model is split, this process may receive the places from
// `device.first` on. The process before it records the window that ends there.
void InfluenceProbe::Take(OnDevice& device, int64_t place, const Batch& batch) {
  if (place <= device.last) device.first = place;  // a new batch has begun
  device.last = place;
  for (auto& [window, statistics] : running_) {
    const int64_t step = Step(window.first), begin = place - window.second * step;
    if (begin < device.first || begin % step != 0) continue;
    products_->Start(device.Before(begin).rows(), device.Before(place).rows());
    records_->Add({window.first, window.second, begin / step, products_->Take(), batch.offsets});
  }
}

void InfluenceProbe::Complete(int64_t) { completed_ = running_; }

// Later groups of other probes need the memory.
void InfluenceProbe::End() {
  records_.reset();
  devices_.clear();
  products_.reset();
}

namespace {

Selection Units(const CriterionTask& task, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickUnits(scores, task.quota);
  selection.scores = std::move(scores);
  return selection;
}

Selection Window(const CriterionTask& task, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickWindow(scores, task.quota);
  selection.scores = std::move(scores);
  selection.window = task.quota.count();
  return selection;
}

const InfluenceStatistics& Found(const CriterionTask& task, int64_t window) {
  return task.probes.Get<InfluenceProbe>().Found(task.quota.unit(), window);
}

}  // namespace

void PlugBlocks(const CriterionTask& task) { task.probes.Get<InfluenceProbe>().Want(task.quota.unit(), 1); }

void PlugWindow(const CriterionTask& task) {
  if (task.quota.count() > 1)
    task.input.weights->RequireWhole(
        fmt::format("--prune {}, which compares streams of different processes,", task.spec.criterion));
  task.probes.Get<InfluenceProbe>().Want(task.quota.unit(), task.quota.count());
}

Selection SelectByBlockInfluence(const CriterionTask& task) { return Units(task, Found(task, 1).Scores()); }

Selection SelectByFrobenius(const CriterionTask& task) { return Units(task, Found(task, 1).FrobeniusScores()); }

Selection SelectByAngle(const CriterionTask& task) {
  return Window(task, Found(task, task.quota.count()).AngularScores());
}

Selection SelectByStreamline(const CriterionTask& task) {
  return Window(task, Found(task, task.quota.count()).Scores());
}

}  // namespace shiftrt
