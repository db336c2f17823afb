// SPDX-License-Identifier: Apache-2.0
// The kernel of lra.h for compute capability 9.0, for lra.cu alone.
#pragma once

#include "kernels/cuda/lra.h"

namespace shiftrt::gpu {

void ApplyLowRankLraInCluster(Stream stream, const LowRankLra& lra, float* h);

}  // namespace shiftrt::gpu
