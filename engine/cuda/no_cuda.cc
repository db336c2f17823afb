// SPDX-License-Identifier: Apache-2.0
#include "engine/backend.h"
#include "engine/collector.h"
#include "engine/ops.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

std::unique_ptr<Backend> MakeCudaBackend(const BackendSetup&) { Fail("CUDA: {}", gpu::WhyUnavailable()); }
// NOLINTBEGIN(performance-unnecessary-value-param): as where there is CUDA
std::unique_ptr<Collector> MakeCudaCollector(const Context&, std::shared_ptr<const Weights>) {
  Fail("CUDA: {}", gpu::WhyUnavailable());
}
std::unique_ptr<Ops> MakeCudaOps(const Context&, std::shared_ptr<const Weights>) {
  Fail("CUDA: {}", gpu::WhyUnavailable());
}
// NOLINTEND(performance-unnecessary-value-param)

}  // namespace shiftrt
