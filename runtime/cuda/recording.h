// SPDX-License-Identifier: Apache-2.0
// The device functions behind LaunchGraph. recording.cc decides when to use them; cuda.cc and the emulator implement
// them.
#pragma once

#include <functional>

#include "runtime/cuda/cuda.h"

namespace shiftrt::gpu {

// Records what `body` launches into `stream`, without running it. Throws Error if the driver refuses to record or to
// instantiate it, and what `body` throws. The stream can be used for launches afterwards in all cases.
CUgraphExec_st* Record(Stream stream, const std::function<void()>& body);
// Launches a recording, with the arguments that it was recorded with.
void Replay(Stream stream, CUgraphExec_st* recorded);
void Forget(CUgraphExec_st* recorded) noexcept;

}  // namespace shiftrt::gpu
