// SPDX-License-Identifier: Apache-2.0
// Adds up the ridge sums of sites while a pass runs.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "shift/sums/pass.h"
#include "shift/sums/sites.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

// Its parts are the sites. Where they are done in groups, all sums change together, when the last group is done: so
// they hold the same batches at any time.
class RidgeProbe : public Probe {
 public:
  // `batches`, where given, counts the batches that the sums hold.
  explicit RidgeProbe(int64_t* batches = nullptr) : batches_(batches) {}
  // `into` lasts longer than the probe, and nobody else changes it meanwhile.
  void Add(const Site& site, RidgeSums& into, const TokenWeights& weighting = {}) {
    entries_.push_back({site, SiteInput::kStream, weighting, &into});
  }
  void Add(const SiteSums& site, RidgeSums& into) {
    entries_.push_back({site.site, site.input, site.weighting, &into});
  }

  // For entries of SiteInput::kNormed.
  void NormAs(const Context& context, std::shared_ptr<const Weights> weights) {
    context_ = &context;
    weights_ = std::move(weights);
  }

  int64_t parts() const override { return std::ssize(entries_); }
  bool dealt() const override { return true; }
  void Begin(Collector& collector, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  void Complete(int64_t batches) override;
  void End() override;

 private:
  struct Entry {
    Site site;
    SiteInput input;
    TokenWeights weighting;
    RidgeSums* sums;
  };
  struct Shared;
  class SiteTaps;
  struct OnDevice;  // the rows and sites that one device holds

  int64_t* batches_;
  const Context* context_ = nullptr;  // with the weights, of the norm
  std::shared_ptr<const Weights> weights_;
  std::vector<Entry> entries_;
  std::vector<RidgeSums> staged_;  // the sums of groups, until all groups are done
  int64_t begin_ = 0, end_ = 0, run_batches_ = 0;
  std::vector<std::unique_ptr<RidgeAdder>> adders_;      // one for each of the parts begin_ .. end_ - 1
  std::vector<std::unique_ptr<RowTransfer>> transfers_;  // one for each of the same parts
  std::vector<std::shared_ptr<OnDevice>> devices_;
};

}  // namespace shiftrt
