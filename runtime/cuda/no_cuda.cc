// SPDX-License-Identifier: Apache-2.0
// The part of runtime/cuda/cuda.h that a build without the CUDA backend implements.
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt::gpu {

const std::string& WhyUnavailable() {
  static const std::string why = "this build has no CUDA backend (configure with -DSHIFTRT_CUDA=ON)";
  return why;
}

int DeviceCount() { return 0; }
DeviceInfo QueryDevice(int) { Fail("CUDA: {}", WhyUnavailable()); }
std::string PciBusId(int) { Fail("CUDA: {}", WhyUnavailable()); }
const std::string& WhyNoCommunicator() { return WhyUnavailable(); }

std::shared_ptr<linalg::Solver> MakeSolver(int) { Fail("CUDA: {}", WhyUnavailable()); }

}  // namespace shiftrt::gpu
