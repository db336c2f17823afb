// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/resources.h"

#include "api/impl.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

Context MakeContext(const Resources& resources) {
  if (resources.threads < 0) FailUsage(Field("threads"), "{} is below 0", resources.threads);
  if (resources.calibration_memory < 0)
    FailUsage(Field("calibration_memory"), "{} bytes are below 0", resources.calibration_memory);
  Context context = Context::Default();
  if (resources.threads > 0) context.threads = resources.threads;
  context.memory = resources.calibration_memory;
  if (resources.gpus.empty()) return context;
  if (const std::string& why_not = gpu::WhyUnavailable(); !why_not.empty()) FailUsage(Field("gpus"), "{}", why_not);
  for (const int gpu : resources.gpus) {
    if (gpu < 0 || gpu >= gpu::DeviceCount())
      FailUsage(Field("gpus"), "there is no GPU {}; this machine has 0 to {}", gpu, gpu::DeviceCount() - 1);
  }
  if (resources.gpus.size() > 1 && !gpu::WhyNoCommunicator().empty())
    FailUsage(Field("gpus"), "{}", gpu::WhyNoCommunicator());
  context.device = Device::kCuda;
  context.gpus = resources.gpus;
  context.solver = gpu::MakeSolver(resources.gpus.front());
  return context;
}

}  // namespace shiftrt
