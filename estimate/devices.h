// SPDX-License-Identifier: Apache-2.0
// The main job on some devices: the memory of each, bytes between them, and the time that the rates of the hardware
// allow. docs/dev/architecture.md has the formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimate/hardware.h"
#include "estimate/main_job.h"
#include "models/split.h"

namespace shiftrt {

// Bytes of one device.
struct PlannedMemory {
  int64_t weights = 0;
  int64_t activations = 0;  // one batch: the stream, the values that a block computes, copies that taps keep
  int64_t streams = 0;      // the calibration text's, if sites are fitted in sequence or the selection keeps them
  int64_t sums = 0;         // the sums of the sites that are collected at once
  int64_t rows = 0;         // tapped rows on their way to the process that adds them up
  int64_t fit = 0;          // matrices of the site that is being fitted, about
  int64_t logits = 0;
  int64_t cache = 0;  // keys and values
  int64_t adapters = 0;
  bool sums_stay = true;  // while sites are fitted: on a CPU. A GPU's go to its host after the pass

  // The most that is needed at the same time: by a pass, a fit or an evaluation, besides the weights.
  int64_t most() const;
};

struct DevicePlan {
  int64_t devices = 1;
  int64_t stages = 1;     // devices that hold one model together (--split); 1: each holds the whole model
  std::string why_not;    // empty if the job can be done so; otherwise the rest says what it would take
  PlannedMemory memory;   // the memory of the device that needs the most
  int64_t host_sums = 0;  // bytes of sums in the memory of the host of a GPU
  int64_t passes = 1;     // over the calibration text, if memory divides the sites into groups
  // Seconds of each step: its work at the rates of the hardware, without messages and waiting.
  double seconds[std::size(kSteps)] = {};
  int64_t stream_bytes = 0;  // per token from one stage to the next
  double sent = 0;           // bytes between all devices, in the whole job

  double total() const;
};

class DevicePlanner {
 public:
  // They outlive it.
  DevicePlanner(const MainJob& job, const JobOutline& outline, const Hardware& hardware);

  // The plan for groups of `stages` devices. Each group holds one model, and the groups share the batches. Each device
  // has a process of its own.
  DevicePlan On(int64_t devices, int64_t stages) const;
  // The plan with the smallest number of stages for which memory has room.
  DevicePlan On(int64_t devices) const;

 private:
  void Whole(DevicePlan& plan) const;
  void Split(DevicePlan& plan) const;
  void SetSeconds(DevicePlan& plan) const;
  int64_t Collected(const ModelShare& share) const;
  PlannedMemory MemoryOf(const ModelShare& share, DevicePlan& plan) const;
  int64_t RowsBytes(int64_t tokens) const;

  const MainJob& job_;
  const JobOutline& outline_;
  const Hardware& hardware_;
  const ModelConfig& config_;
  DepthPlan plan_;  // the original one, whose weights a device has
  DType dtype_;
};

}  // namespace shiftrt
