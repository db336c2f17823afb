// SPDX-License-Identifier: Apache-2.0
// The gradient of a step, which is the sum of the gradients of several passes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/gradients.h"
#include "engine/ops.h"
#include "runtime/context.h"
#include "runtime/processes.h"

namespace shiftrt {

// Adds the gradients of passes in float32, in the order of the passes. The passes are dealt out to the processes of a
// context, and the bits do not depend on the number of processes. With N processes and a gradient of n numbers, each
// process adds n / N of them, and sends 4 n (N - 1) / N bytes per pass and as many per step.
class GradientSum {
 public:
  // `gradients`: where a pass leaves its gradient of `count` numbers, in the memory of the device of `ops`.
  GradientSum(const Context& context, Ops& ops, DeviceMemory gradients, int64_t count);

  // Calls pass(i) for those of the passes 0 .. passes - 1 that this process has, and adds their gradients. Returns the
  // losses of all passes.
  std::vector<LossSum> Add(int64_t passes, const std::function<LossSum(int64_t pass)>& pass);
  // The sum, in the memory of the device; valid until the next Add(). The sum of one pass is its gradient itself.
  const DeviceMemory& sum() const { return one_ ? gradients_ : total_; }

 private:
  int64_t SliceBegin(int rank) const { return count_ * rank / processes_.size(); }
  std::span<float> Slice(std::vector<float>& whole, int rank) const;
  void EndRound(int64_t present);
  void Finish();

  const Context context_;
  Processes& processes_;  // those of the context
  Ops& ops_;
  const DeviceMemory gradients_;
  const int64_t count_;
  const int channel_;
  bool one_ = true;                // one pass, and one process
  bool empty_ = true;              // the sum: its first gradient is copied, which keeps the sign of a zero
  DeviceMemory total_;             // empty unless needed
  std::vector<float> host_, sum_;  // with several processes a gradient, and this process's slice of the sum
};

}  // namespace shiftrt
