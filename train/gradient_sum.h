// SPDX-License-Identifier: Apache-2.0
// The gradient of a step, of the passes that one process or several have computed.
#pragma once

#include <vector>

#include "runtime/processes.h"
#include "train/loop.h"

namespace shiftrt {

// Adds the gradients of passes in float32, in the order of the passes, whichever process has computed them: the bits do
// not depend on the number of processes. With N processes and a gradient of n numbers, each process adds n / N of them,
// and sends 4 n (N - 1) / N bytes per pass and as many per step.
class GradientSum {
 public:
  GradientSum(TrainingArrays& arrays, Processes& processes);
  // For a step of so many passes. Of one pass, the gradient itself is the sum.
  void Begin(int64_t passes);
  // Adds the gradients that so many processes, from the first, have in their arrays. All processes call it.
  void EndRound(int64_t present);
  // The sum, in the memory of the arrays' device; valid until the next Begin().
  const DeviceMemory& Finish();

 private:
  int64_t SliceBegin(int rank) const { return arrays_.count * rank / processes_.size(); }
  std::span<float> Slice(std::vector<float>& whole, int rank) const;

  TrainingArrays& arrays_;
  Processes& processes_;
  const int channel_;
  bool one_ = true;                // one pass, of this process, which is alone
  bool empty_ = true;              // the sum: its first gradient is copied, which keeps the sign of a zero
  DeviceMemory total_;             // where needed
  std::vector<float> host_, sum_;  // of several processes: a gradient; this process's slice of the sum
};

}  // namespace shiftrt
