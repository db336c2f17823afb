// SPDX-License-Identifier: Apache-2.0
// The change of direction of the stream across a block, or across a window of blocks that would be removed.
#pragma once

#include <deque>
#include <map>

#include "shift/criteria/criteria.h"
#include "shift/sums/pass.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

// For one batch at a time, it keeps the stream before as many blocks as the longest window has, and one more.
class InfluenceProbe : public Probe {
 public:
  InfluenceProbe(const CriterionInput& input, Progress& progress);
  // Of a plan that runs the blocks `kept` (ascending) of a model of `layers`: block i is kept[i].
  InfluenceProbe(std::vector<int64_t> kept, int64_t layers);
  // Asks for the influence of every `window` consecutive blocks. Throws Error for a window the model does not have.
  void Want(int64_t window);
  // One number per first block of a window: layers - window + 1 numbers.
  const InfluenceStatistics& Found(int64_t window) const { return settled_.at(window); }

  bool dealt() const override { return true; }
  void Begin(Tally& tally, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  void EndRound(int64_t present) override;
  void Settle(int64_t batches) override;
  void End() override;

 private:
  // One device's streams before the last few blocks, kept because the decoder updates its stream in place.
  struct OnDevice {
    std::vector<KeptRows> recent;
    KeptRows& Before(int64_t block) { return recent[block % std::ssize(recent)]; }
  };
  void Take(OnDevice& device, int64_t block, const Rows& h, const Batch& batch);
  int64_t blocks() const { return std::ssize(depths_) - 1; }

  std::vector<int64_t> depths_;  // where the stream is tapped: in front of each block, and behind the last
  std::map<int64_t, InfluenceStatistics> settled_, heard_;  // by window
  std::unique_ptr<PendingProducts> products_;
  Processes* processes_ = nullptr;
  Packer round_;  // the products of this process's batch, where several share the pass
  std::deque<OnDevice> devices_;
};

}  // namespace shiftrt
