// SPDX-License-Identifier: Apache-2.0
// Says by which criterion layers are removed, and how many: CRITERION:AMOUNT[,option=value].
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "include/shiftrt/recipe.h"
#include "models/plan.h"
#include "models/weights.h"

namespace shiftrt {

// "block", "half". Throws UsageError for another word.
Unit ParseUnit(std::string_view name);
int64_t UnitsOf(Unit unit, int64_t layers);
BlockPart PartOf(Unit unit, int64_t index);

// The number of units to remove: blocks, or halves, of which a share or a target takes twice as many as it would
// take blocks; the most that PruneSpec::max_divergence may remove. Throws UsageError for an amount that removes nothing
// or everything, more than `keep` leaves, or a target that no removal reaches.
int64_t RemovalCount(const PruneSpec& spec, const Weights& weights);

// Decides which units may be removed. Its user names one unit after another, the least important first.
// - Blocks, and halves by number: until there are RemovalCount() of them.
// - A share of the halves: the bytes of their tensors are at most those of as many blocks as the share would remove. A
//   half that would exceed these is passed over; a smaller one after it may fit.
// - A target for halves: until it is reached. Then those without which it would be reached too are put back, the most
//   important first.
class Quota {
 public:
  // Throws as RemovalCount does.
  Quota(const PruneSpec& spec, const Weights& weights);

  Unit unit() const { return unit_; }
  int64_t units() const { return std::ssize(sizes_); }  // units of the model
  int64_t count() const { return count_; }              // RemovalCount()
  int64_t first() const { return first_; }              // the first unit that keep= does not protect
  int64_t end() const { return end_; }                  // after the last such unit
  bool by_size() const { return by_size_; }             // true if the amount is a size, in which units differ
  // The cost per size of removing a unit with this score. If units are counted, it is the score itself.
  double CostPerSize(int64_t unit, double score) const { return score / static_cast<double>(sizes_[unit]); }
  bool Admits(int64_t unit) const;
  void Take(int64_t unit);
  std::vector<BlockPart> Removed() const;  // in the order of depth

 private:
  Unit unit_;
  int64_t count_, first_, end_;
  std::vector<int64_t> sizes_;  // sizes of units, in the unit of limit_
  int64_t limit_, size_ = 0;    // size_: of taken_
  bool by_size_ = false;
  bool reach_ = false;  // limit_ is the least, not the most
  std::vector<int64_t> taken_;
};

}  // namespace shiftrt
