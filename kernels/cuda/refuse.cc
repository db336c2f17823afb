// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/grid.h"
#include "runtime/check.h"

namespace shiftrt::gpu {

void Refuse(const char* operation, const char* expected, int64_t found) {
  Fail("{} on the GPU: expected {}, found {}", operation, expected, found);
}

}  // namespace shiftrt::gpu
