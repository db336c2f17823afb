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
  settled_.emplace(std::pair(unit, count), InfluenceStatistics(units - count + 1));
  found_ = settled_;
}

void InfluenceProbe::Begin(Tally& tally, int64_t, int64_t) {
  heard_ = settled_;
  devices_.clear();
  products_ = tally.MakeProducts();
  processes_ = &tally.processes();
  channel_ = processes_->NewChannel();
  round_.Take();
}

std::vector<Tap> InfluenceProbe::Taps() {
  OnDevice& device = devices_.emplace_back();
  int64_t longest = 0;
  bool halves = false;
  for (const auto& [window, statistics] : heard_) {
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
           KeptRows& behind = device.Before(2 * block + 1);
           behind.Set(device.Before(2 * block).rows());
           behind.Add(update);
           Take(device, 2 * block + 1, batch);
         }});
  }
  return taps;
}

// Every window that ends at `place`. Where the model is split, its first place here is the last one of the process
// before, which has heard the window that ends there.
void InfluenceProbe::Take(OnDevice& device, int64_t place, const Batch& batch) {
  if (place <= device.last) device.first = place;  // of another batch
  device.last = place;
  for (auto& [window, statistics] : heard_) {
    const int64_t step = Step(window.first), begin = place - window.second * step;
    if (begin < device.first || begin % step != 0) continue;
    products_->Start(device.Before(begin).rows(), device.Before(place).rows());
    if (processes_->groups() == 1) {
      statistics.Add(begin / step, products_->Take(), batch.offsets);
    } else {
      round_.Put(window.first).Put(window.second).Put(begin / step).PutAll(products_->Take()).PutAll(batch.offsets);
    }
  }
}

void InfluenceProbe::Add(Unpacker in) {
  while (!in.done()) {
    const Unit unit = in.Get<Unit>();
    const auto count = in.Get<int64_t>(), first = in.Get<int64_t>();
    const auto products = in.GetAll<RowProducts>();
    heard_.at({unit, count}).Add(first, products, in.GetAll<int64_t>());
  }
}

// Every process adds the products of all batches, in their order. Where the model is split, those of the first group
// do, each for its own blocks, and need not wait for the others.
void InfluenceProbe::EndRound(int64_t present) {
  if (processes_->groups() == 1) return;
  Bytes mine = round_.Take();
  if (!processes_->split()) {
    for (const Bytes& batch : processes_->Gather(std::move(mine))) Add(Unpacker(batch));
  } else if (processes_->group() > 0) {
    if (processes_->group() < present) processes_->Send(processes_->part(), channel_, std::move(mine));
  } else {
    Add(Unpacker(mine));
    for (int group = 1; group < present; ++group) {
      const Bytes theirs = processes_->Receive(processes_->RankOf(group, processes_->part()), channel_);
      Add(Unpacker(theirs));
    }
  }
}

void InfluenceProbe::Settle(int64_t) {
  settled_ = found_ = heard_;
  if (!processes_->split()) return;
  Packer mine;
  for (const auto& [window, statistics] : heard_) statistics.Put(mine);
  const std::vector<Bytes> all = processes_->Gather(mine.Take());
  for (auto& [window, statistics] : found_) statistics = InfluenceStatistics(statistics.layers());
  for (int part = 0; part < processes_->parts(); ++part) {  // of the first group
    Unpacker in(all[part]);
    for (auto& [window, statistics] : found_) {
      InfluenceStatistics theirs = statistics;
      theirs.Get(in);
      statistics += theirs;
    }
  }
}

// Later groups of other probes need the memory.
void InfluenceProbe::End() {
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
