// SPDX-License-Identifier: Apache-2.0
// The targets of `shiftrt bench` on an H100 or H200, and what our own arithmetic lets us expect there.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "bench/calibration_bench.h"
#include "bench/gpu_bench.h"

namespace shiftrt {

// docs/dev/gpu.md has the same rows, and the arithmetic of `expected`, which was computed for an H200 before the first
// run.
struct GpuTarget {
  const char* what;
  const char* wanted;
  const char* expected;
};
inline constexpr GpuTarget kGpuTargets[] = {
    {"decode, share of the copy bandwidth", ">= 0.92 (8B), 0.80 (1.5B)", "0.86-0.90 (8B), 0.72-0.78 (1.5B)"},
    {"pruned over original", ">= 1.28", "1.29-1.30 (8B)"},
    {"rank-64 adapters, cost over pruned", "<= 0.010", "0.008-0.012 (8B)"},
    {"one merged adapter, cost over pruned", "<= 0.005", "0.001-0.002 (8B)"},
    {"prefill, share of the matrix peak", ">= 0.75 (8B)", "0.73-0.76 (8B)"},
    {"packed attention, share of the peak", ">= 0.50", "0.5-0.7"},
    {"main job, seconds", "<= 10 (8B)", "9.9-11.5 (8B)"},
    {"LoRA step, share of the matrix peak", ">= 0.50 (8B)", "0.35-0.50 (8B)"},
};

struct MeasuredTarget {
  const GpuTarget* target;
  double found;
};
// Those of kGpuTargets that a run measured, in that order. Packed attention is the kernel that the device takes by
// itself: attention_warpgroup if it was timed, otherwise attention_packed.
std::vector<MeasuredTarget> MeasuredTargets(std::span<const GpuKernelTime> kernels,
                                            const std::optional<GpuModelBench>& model,
                                            const std::optional<MainJobTimes>& job);

}  // namespace shiftrt
