// SPDX-License-Identifier: Apache-2.0
// The main job on some devices: the memory of each, bytes between them, and the time that the rates of the hardware
// allow. docs/scale.md has the formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimate/hardware.h"
#include "estimate/main_job.h"
#include "models/split.h"

namespace shiftrt {

// Of one device, in bytes.
struct DeviceMemory {
  int64_t weights = 0;
  int64_t activations = 0;  // of one batch: the stream, what a block computes, copies that taps keep
  int64_t streams = 0;      // of the calibration text, where places are fitted in sequence
  int64_t sums = 0;         // of the places that are collected at once
  int64_t rows = 0;         // of tapped batches, on their way to the process that adds them up
  int64_t fit = 0;          // matrices of the place that is being fitted, about
  int64_t logits = 0;
  int64_t cache = 0;  // keys and values
  int64_t adapters = 0;
  bool sums_stay = true;  // while places are fitted: on a CPU. A GPU's go to its host after the pass

  // What is needed at the same time: a pass, a fit or an evaluation beside the weights.
  int64_t most() const;
};

struct DevicePlan {
  int64_t devices = 1;
  int64_t stages = 1;     // devices that hold one model together (--split); 1: each holds the whole model
  std::string why_not;    // where the job cannot be done so; the rest is then of what it would take
  DeviceMemory memory;    // of the device that needs the most
  int64_t host_sums = 0;  // of GPUs: bytes of sums in the memory of their host
  int64_t passes = 1;     // over the calibration text, for which memory divides the places
  // By step: the work at the rates of the hardware, without time for messages and for waiting.
  double seconds[std::size(kSteps)] = {};
  int64_t stream_bytes = 0;  // per token from one stage to the next
  double sent = 0;           // bytes between all devices, in the whole job

  double total() const;
};

class DevicePlanner {
 public:
  // They outlive it.
  DevicePlanner(const MainJob& job, const JobOutline& outline, const Hardware& hardware);

  // In groups of so many devices, each of which holds one model, and which share the batches. Each device has
  // a process of its own.
  DevicePlan On(int64_t devices, int64_t stages) const;
  // With the smallest number of stages for which memory has room.
  DevicePlan On(int64_t devices) const;

 private:
  void Whole(DevicePlan& plan) const;
  void Split(DevicePlan& plan) const;
  void SetSeconds(DevicePlan& plan) const;
  int64_t Collected(const ModelShare& share) const;
  DeviceMemory MemoryOf(const ModelShare& share, DevicePlan& plan) const;
  int64_t RowsBytes(int64_t tokens) const;

  const MainJob& job_;
  const JobOutline& outline_;
  const Hardware& hardware_;
  const ModelConfig& config_;
  DepthPlan plan_;  // the original one, whose weights a device has
  DType dtype_;
};

}  // namespace shiftrt
