#include "shift/sums/collect.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "shift/sums/ridge_feed.h"

namespace shiftrt {

namespace {

// A site, and the accumulator its tokens go to.
struct Target {
  const SiteSums* site;
  RidgeAccumulator* sums;
};

// What goes by at one site while a batch runs.
class SiteTaps {
 public:
  // `shared` serves every site of one block that reads the stream: the next site's input comes after its update.
  SiteTaps(const SiteSums& sums, RidgeFeed& feed, KeptRows& shared)
      : site_(sums.site),
        sums_(sums),
        feed_(feed),
        input_(site_.blocks > 1 || sums.input != SiteInput::kStream ? &own_ : &shared) {}

  void AddTo(std::vector<Tap>& taps) {
    const auto keep = [this](const Rows& h, const Batch&) { input_->Set(h); };
    if (sums_.input == SiteInput::kStream) {
      taps.push_back({site_.layer, TapPoint::kInput, keep});
    } else {
      taps.push_back({site_.layer - 1, TapPoint::kMlp, keep});
    }
    for (int64_t layer = site_.layer; layer <= site_.last(); ++layer)
      taps.push_back({layer, TapPoint::kUpdate,
                      [this, layer](const Rows& update, const Batch& batch) { Take(layer, update, batch); }});
  }

 private:
  void Take(int64_t layer, const Rows& update, const Batch& batch) {
    if (site_.blocks == 1) return Finish(update, batch);
    if (layer == site_.layer) {
      sum_.Set(update);
    } else {
      sum_.Add(update);
    }
    if (layer == site_.last()) Finish(sum_.rows(), batch);
  }

  void Finish(const Rows& update, const Batch& batch) {
    feed_.Add(input_->rows(), update, sums_.weighting, batch.offsets);
  }

  const Site& site_;
  const SiteSums& sums_;
  RidgeFeed& feed_;
  KeptRows own_, sum_;  // where needed
  KeptRows* input_;
};

// One device's way through the batches it gets: the original model up to the last of some sites.
class Lane {
 public:
  Lane(const Context& context, const Model& model, const std::vector<Target>& targets, std::deque<RidgeFeed>& feeds) {
    std::vector<Tap> taps;
    for (size_t i = 0; i < targets.size(); ++i) sites_.emplace_back(*targets[i].site, feeds[i], shared_).AddTo(taps);
    decoder_.emplace(context, model.weights, DepthPlan::Original(model.weights->config.layers), std::move(taps));
  }
  void Run(const Batch& batch) { decoder_->Forward(batch, true); }

 private:
  KeptRows shared_;
  std::deque<SiteTaps> sites_;
  std::optional<Decoder> decoder_;
};

// Devices take batches in turns. A GPU is given its next one while the others are at theirs.
class Pass {
 public:
  Pass(const Context& context, const Model& model, const std::vector<Target>& targets)
      : tally_(MakeTally(context, *model.weights)) {
    for (const Target& target : targets) feeds_.emplace_back(*tally_, target.site->site, *target.sums);
    for (int64_t i = 0; i < tally_->devices(); ++i) lanes_.emplace_back(context.WithGpu(i), model, targets, feeds_);
  }
  void Run(const Batch& batch) {
    lanes_[turn_].Run(batch);
    turn_ = (turn_ + 1) % lanes_.size();
  }
  // The targets now hold all batches that were run.
  void Settle() {
    for (RidgeFeed& feed : feeds_) feed.Settle();
  }

 private:
  std::unique_ptr<Tally> tally_;
  std::deque<RidgeFeed> feeds_;  // of the targets
  std::deque<Lane> lanes_;       // of the devices
  size_t turn_ = 0;
};

// One half of the calibration text, fitted or held out.
class Half {
 public:
  Half(const ShiftJob& job, std::vector<SiteSums>& sites, RidgeAccumulator SiteSums::*part,
       const std::vector<Batch>& batches, int64_t& done, std::string phase)
      : job_(job), sites_(sites), part_(part), batches_(batches), done_(done), phase_(std::move(phase)) {}

  void Run(Checkpoint* checkpoint) {
    if (sites_.empty() || done_ == std::ssize(batches_)) return;
    try {
      RunTogether(checkpoint);
    } catch (const OutOfMemory&) {
      if (sites_.size() == 1) throw;
      RunInGroups();
    }
  }

 private:
  void RunTogether(Checkpoint* checkpoint) {
    std::vector<Target> targets;
    for (SiteSums& site : sites_) targets.push_back({&site, &(site.*part_)});
    Pass pass(job_.context, job_.model, targets);
    int64_t reached = done_;
    const auto settle = [&] {
      pass.Settle();
      done_ = reached;
    };
    try {
      ForEachBatch(phase_, [&](const Batch& batch) {
        pass.Run(batch);
        ++reached;
        if (checkpoint == nullptr || !checkpoint->Due()) return;
        settle();
        checkpoint->Save();
      });
    } catch (const Interrupted&) {
      settle();
      throw;
    }
    settle();
  }

  // Groups go into accumulators of their own, so that the sites' keep agreeing with one count of batches.
  void RunInGroups() {
    std::vector<RidgeAccumulator> collected;
    for (const SiteSums& site : sites_) collected.push_back((site.*part_).Clone());
    size_t at_once = (sites_.size() + 1) / 2;
    for (size_t first = 0; first < sites_.size();) {
      std::vector<Target> targets;
      for (size_t i = first; i < std::min(first + at_once, sites_.size()); ++i)
        targets.push_back({&sites_[i], &collected[i]});
      try {
        RunGroup(targets,
                 fmt::format("{}, sites {} to {} of {}", phase_, first + 1, first + targets.size(), sites_.size()));
        first += targets.size();
      } catch (const OutOfMemory&) {
        if (targets.size() == 1) throw;
        at_once = (targets.size() + 1) / 2;
      }
    }
    for (size_t i = 0; i < sites_.size(); ++i) sites_[i].*part_ = std::move(collected[i]);
    done_ = std::ssize(batches_);
  }

  void RunGroup(const std::vector<Target>& targets, const std::string& phase) {
    Pass pass(job_.context, job_.model, targets);
    ForEachBatch(phase, [&](const Batch& batch) { pass.Run(batch); });
    pass.Settle();
  }

  // That is not done yet.
  void ForEachBatch(const std::string& phase, const std::function<void(const Batch&)>& run) {
    const auto left = std::span(batches_).subspan(done_);
    int64_t tokens = 0;
    for (const Batch& batch : left) tokens += batch.size();
    job_.progress.Begin(phase, tokens);
    for (const Batch& batch : left) {
      run(batch);
      job_.progress.Advance(batch.size());
    }
    job_.progress.End();
  }

  const ShiftJob& job_;
  std::vector<SiteSums>& sites_;
  RidgeAccumulator SiteSums::*part_;
  const std::vector<Batch>& batches_;
  int64_t& done_;
  std::string phase_;
};

}  // namespace

CollectedSums CollectedSums::Empty(const std::vector<int64_t>& layers, int64_t hidden) {
  CollectedSums sums;
  for (int64_t layer : layers) sums.sites.emplace_back(Site{layer}, hidden);
  return sums;
}

std::vector<int64_t> CollectedSums::Layers() const {
  std::vector<int64_t> layers;
  for (const SiteSums& site : sites) layers.push_back(site.site.layer);
  return layers;
}

std::vector<const SiteSums*> CollectedSums::Sites(const std::vector<int64_t>& layers) const {
  const std::vector<int64_t> held = Layers();
  std::vector<const SiteSums*> chosen;
  for (int64_t layer : layers) {
    const auto found = std::lower_bound(held.begin(), held.end(), layer);
    Check(found != held.end() && *found == layer, "there are no sums of layer {}; there are of {}", layer,
          fmt::join(held, ", "));
    chosen.push_back(&sites[found - held.begin()]);
  }
  return chosen;
}

int64_t SitesInMemory(const Context& context, int64_t hidden) {
  return MemoryForSums(context) / SiteSums::Bytes(hidden);
}

void CheckMemory(const Context& context, int64_t sites, int64_t hidden, const char* advice) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const int64_t room = MemoryForSums(context), taken = sites * SiteSums::Bytes(hidden);
  Check(taken <= room, "the calibration sums of {} site{} take {:.4g} MiB of memory, and {:.4g} MiB may be used; {}",
        sites, sites == 1 ? "" : "s", mib(taken), mib(room), advice);
}

void Collect(const ShiftJob& job, CollectedSums& sums, Checkpoint* checkpoint) {
  Half(job, sums.sites, &SiteSums::fit, job.calibration.fit, sums.fit_batches, "calibrating").Run(checkpoint);
  Half(job, sums.sites, &SiteSums::heldout, job.calibration.heldout, sums.heldout_batches, "measuring on held-out text")
      .Run(checkpoint);
}

}  // namespace shiftrt
