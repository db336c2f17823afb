// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_targets.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace shiftrt {

std::vector<MeasuredTarget> MeasuredTargets(std::span<const GpuKernelTime> kernels,
                                            const std::optional<GpuModelBench>& model,
                                            const std::optional<MainJobTimes>& job) {
  std::array<std::optional<double>, std::size(kGpuTargets)> found;
  if (model) {
    const auto speed = [&](size_t variant) { return model->variants[variant].decode_tokens_per_second; };
    found[0] = speed(0) / model->variants[0].decode_floor;
    found[1] = speed(1) / speed(0);
    found[2] = 1 - speed(2) / speed(1);
    found[3] = 1 - speed(3) / speed(1);
    found[4] = model->prefill_tokens_per_second / model->prefill_floor;
  }
  for (const std::string_view room : {"attention_packed", "attention_warpgroup"}) {
    const auto time = std::ranges::find(kernels, room, &GpuKernelTime::room);
    if (time != kernels.end()) found[5] = time->floor / time->seconds;
  }
  if (job) found[6] = job->total;
  std::vector<MeasuredTarget> measured;
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i]) measured.push_back({&kGpuTargets[i], *found[i]});
  return measured;
}

}  // namespace shiftrt
