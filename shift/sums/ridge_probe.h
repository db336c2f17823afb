// SPDX-License-Identifier: Apache-2.0
// Adds up the ridge sums of sites while a pass runs.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shift/sums/pass.h"
#include "shift/sums/ridge_adder.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// Its parts are the sites. Where they are done in groups, all sums change together, when the last group is done: so
// they hold the same batches at any time.
class RidgeProbe : public Probe {
 public:
  // `batches`, where given, counts the batches that the sums hold. `weights`, where given, may be a part of a split
  // model: what is tapped of a site in one process goes to the next one that holds blocks of it.
  explicit RidgeProbe(int64_t* batches = nullptr, std::shared_ptr<const Weights> weights = nullptr)
      : batches_(batches), weights_(std::move(weights)) {}
  // `into` lasts longer than the probe, and nobody else changes it meanwhile.
  void Add(const Site& site, RidgeSums& into) { entries_.push_back({site, SiteInput::kStream, {}, &into, -1}); }
  void Add(const SiteSums& site, RidgeSums& into) {
    entries_.push_back({site.site, site.input, site.weighting, &into, site.holder});
  }

  int64_t parts() const override { return std::ssize(entries_); }
  bool dealt() const override { return true; }
  void Begin(Tally& tally, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  void EndRound(int64_t present) override;
  void Settle(int64_t batches) override;
  void End() override;

 private:
  struct Entry {
    Site site;
    SiteInput input;
    TokenWeighting weighting;
    RidgeSums* sums;
    int holder;
  };
  struct Shared;
  // The next process, or the one before, has other blocks of the site.
  struct Border {
    Processes* processes;
    int channel;
    int64_t first, last;  // the layers of the site that this process has
  };
  class SiteTaps;
  struct OnDevice;  // what it keeps on one device

  int64_t* batches_;
  std::shared_ptr<const Weights> weights_;
  std::vector<Entry> entries_;
  std::vector<RidgeSums> staged_;  // the sums of groups, until all groups are done
  int64_t begin_ = 0, end_ = 0, heard_ = 0;
  std::deque<RidgeAdder> adders_;               // of the parts begin_ .. end_ - 1
  std::vector<std::optional<Border>> borders_;  // of the same
  std::vector<std::shared_ptr<OnDevice>> devices_;
};

}  // namespace shiftrt
