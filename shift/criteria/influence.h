// SPDX-License-Identifier: Apache-2.0
// The change of direction of the stream across a block or a half of one, or across a window of these that would be
// removed.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shift/criteria/criteria.h"
#include "shift/sums/pass.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

// It keeps the stream of one batch before as many units as the longest window has, and one more.
class InfluenceProbe : public Probe {
 public:
  InfluenceProbe(const CriterionInput& input, Progress& progress);
  // For a plan that runs the blocks `kept` (ascending) of a model of `layers`: block i is kept[i].
  InfluenceProbe(std::vector<int64_t> kept, int64_t layers);
  // Asks for the influence of every `count` consecutive units. Throws Error for a window the model does not have.
  void Want(Unit unit, int64_t count);
  // One number per first unit of a window: units - count + 1 numbers.
  const InfluenceStatistics& Found(Unit unit, int64_t count) const { return completed_.at({unit, count}); }

  bool dealt() const override { return true; }
  void Begin(Collector& collector, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override;
  void Complete(int64_t batches) override;
  void End() override;

 private:
  // One device's streams before the last few places, kept because the decoder updates its stream in place.
  struct OnDevice {
    std::vector<KeptRows> recent;
    int64_t first = 0, last = std::numeric_limits<int64_t>::max();  // the places that were received of a batch
    KeptRows& Before(int64_t place) { return recent[place % std::ssize(recent)]; }
  };
  using Windows = std::map<std::pair<Unit, int64_t>, InfluenceStatistics>;
  static int64_t Step(Unit unit) { return unit == Unit::kHalf ? 1 : 2; }  // in places
  // The stream before `place` is there.
  void Take(OnDevice& device, int64_t place, const Batch& batch);

  int64_t blocks() const { return std::ssize(depths_) - 1; }

  // The products of a batch's tokens before and after the window that begins with unit `first`.
  struct Record {
    Unit unit{};
    int64_t count = 0, first = 0;
    std::vector<RowProducts> products;
    std::vector<int64_t> offsets;  // the offsets in the batch
    friend auto FieldsOf(Record& r) { return std::tie(r.unit, r.count, r.first, r.products, r.offsets); }
  };

  std::vector<int64_t> depths_;  // the depths of the taps, which are before each block and after the last
  Windows completed_, running_;
  std::unique_ptr<PendingProducts> products_;
  std::optional<BatchRecords<Record>> records_;
  std::deque<OnDevice> devices_;
};

}  // namespace shiftrt
