// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/pass.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "runtime/check.h"
#include "runtime/shared_items.h"
#include "shift/sums/sites.h"

namespace shiftrt {

struct Pass::Group {
  Plugged plugged;
  int64_t at_once = 1, begin = 0, end = 0;

  Probe& probe() const { return *plugged.probe; }
  bool active() const { return end > begin; }
  bool whole() const { return begin == 0 && end == probe().parts(); }
  int64_t size() const { return end - begin; }
};

class Pass::DeviceRun {
 public:
  DeviceRun(const Pass& pass, const Context& context, const std::vector<Group>& groups) {
    for (size_t plan = 0; plan < pass.plans_.size(); ++plan) {
      std::vector<Tap> taps;
      for (const Group& group : groups) {
        if (!group.active() || group.plugged.plan != plan) continue;
        std::vector<Tap> more = group.probe().Taps();
        std::move(more.begin(), more.end(), std::back_inserter(taps));
      }
      for (const Tap& tap : taps)
        Check(tap.layer >= pass.first_, "a tap at block {} of a pass that begins at block {}", tap.layer, pass.first_);
      if (!taps.empty()) decoders_.emplace_back(context, pass.weights_, pass.plans_[plan], std::move(taps));
    }
    stages_ = StagesBetween(2 * pass.first_, 2 * pass.weights_->config.layers);
  }
  // `kept`: the stream of this batch where the pass begins; null: it begins with the tokens.
  void Run(const Batch& batch, const KeptRows* kept) {
    for (Decoder& decoder : decoders_) {
      if (kept == nullptr) {
        decoder.Forward(batch, /*taps_only=*/true);
      } else {
        decoder.Resume(batch, kept->rows(), stages_, /*taps_only=*/true);
      }
    }
  }

 private:
  std::deque<Decoder> decoders_;  // decoders of the plans that have taps
  std::vector<Stage> stages_;     // from the block at which the pass begins
};

Pass::Pass(const Context& context, std::shared_ptr<const Weights> weights)
    : context_(context), weights_(std::move(weights)) {}

void Pass::Add(Probe& probe) { Add(DepthPlan::Original(weights_->config.layers), probe); }

void Pass::Add(const DepthPlan& plan, Probe& probe) {
  const auto known = std::find(plans_.begin(), plans_.end(), plan);
  probes_.push_back({&probe, static_cast<size_t>(known - plans_.begin())});
  if (known == plans_.end()) plans_.push_back(plan);
}

void Pass::BeginAt(int64_t layer, std::span<const KeptRows> streams) {
  first_ = layer;
  streams_ = streams;
}

void Pass::Run(const std::string& phase, std::span<const Batch> batches, Progress& progress,
               PassCheckpoint* checkpoint) {
  std::vector<Group> groups;
  int64_t measured = 0;
  for (const Plugged& plugged : probes_) {
    measured = std::max(measured, plugged.probe->batches(std::ssize(batches)));
    const int64_t parts = plugged.probe->parts();
    if (parts > 0) groups.push_back({plugged, std::clamp<int64_t>(plugged.probe->parts_at_once(), 1, parts)});
  }
  Check(streams_.empty() || (streams_.size() == batches.size() && plans_.size() == 1),
        "{} streams for a pass of {} batches and {} plans", streams_.size(), batches.size(), plans_.size());
  Text text{batches.first(measured)};
  while (true) {
    for (Group& group : groups) group.end = std::min(group.begin + group.at_once, group.probe().parts());
    if (std::none_of(groups.begin(), groups.end(), [](const Group& group) { return group.active(); })) return;
    try {
      RunGroups(phase, text, groups, progress, checkpoint);
    } catch (const OutOfMemory&) {
      Group& largest = *std::max_element(groups.begin(), groups.end(),
                                         [](const Group& a, const Group& b) { return a.size() < b.size(); });
      if (largest.size() <= 1) throw;
      largest.at_once = (largest.size() + 1) / 2;
      continue;
    }
    for (Group& group : groups) group.begin = group.end;
  }
}

// Runs the batches that are not completed yet.
void Pass::RunGroups(const std::string& phase, Text& text, std::vector<Group>& groups, Progress& progress,
                     PassCheckpoint* checkpoint) {
  const bool whole = std::all_of(groups.begin(), groups.end(), [](const Group& group) { return group.whole(); });
  const auto each = [&](const auto& call) {
    for (Group& group : groups)
      if (group.active()) call(group);
  };
  std::string title = phase;
  each([&](const Group& group) {
    if (!group.whole())
      title = fmt::format("{}, sites {} to {} of {}", phase, group.begin + 1, group.end, group.probe().parts());
  });

  bool dealt = true;
  each([&](const Group& group) { dealt = dealt && group.probe().dealt(); });
  const Context context = dealt ? context_ : context_.Alone();
  const std::unique_ptr<Collector> collector = MakeCollector(context, weights_);
  each([&](const Group& group) {
    collector->InMemory([&] { group.probe().Begin(*collector, group.begin, group.end); });
  });
  std::deque<DeviceRun> devices;
  collector->InMemory([&] {
    for (int64_t i = 0; i < collector->devices(); ++i) devices.emplace_back(*this, context.WithGpu(i), groups);
  });

  const int64_t before = text.completed;
  const std::span<const Batch> batches = text.batches.subspan(before);
  int64_t tokens = 0, completed = 0, done = 0;
  for (const Batch& batch : batches) tokens += batch.size();
  const auto complete = [&] {
    each([&](const Group& group) { group.probe().Complete(done - completed); });
    completed = done;
  };
  progress.Begin(title, tokens * static_cast<int64_t>(plans_.size()));
  try {
    int64_t turn = 0;
    bool interrupted = false;
    const auto run = [&](int64_t b) {
      each([&](const Group& group) { group.probe().BeginBatch(before + b); });
      devices[turn++ % std::ssize(devices)].Run(batches[b], streams_.empty() ? nullptr : &streams_[before + b]);
      CountBatch(context_, batches[b].size() * static_cast<int64_t>(plans_.size()));
    };
    collector->ForEachBatch(std::ssize(batches), run, [&](int64_t first, int64_t end, bool together) {
      done = end;
      if (together && whole && checkpoint != nullptr && DecidedByWriter(context, checkpoint->Due())) {
        complete();
        checkpoint->Save();
      }
      int64_t advance = 0;
      for (const Batch& batch : batches.subspan(first, end - first)) advance += batch.size();
      try {
        progress.Advance(advance * static_cast<int64_t>(plans_.size()));
      } catch (const Interrupted&) {
        interrupted = true;
      }
      if (together && WantedByAny(context, interrupted)) throw Interrupted();  // so that all stop after the same batch
    });
  } catch (const Interrupted&) {
    complete();
    throw;
  } catch (const OutOfMemory&) {
    text.completed += completed;
    throw;
  }
  progress.End();
  complete();
  each([&](const Group& group) { group.probe().End(); });
}

}  // namespace shiftrt
