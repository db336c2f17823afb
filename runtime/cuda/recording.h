// What LaunchGraph needs of a device. recording.cc holds the rule, cuda.cc and the emulator these three functions.
#pragma once

#include <functional>

#include "runtime/cuda/cuda.h"

namespace shiftrt::gpu {

// Records what `body` launches into `stream`, without running it. Throws Error where the driver refuses to record or to
// instantiate it, and what `body` throws; the stream takes launches again in either case.
CUgraphExec_st* Record(Stream stream, const std::function<void()>& body);
// Launches a recording. `body` is what was recorded: the emulator runs it, a GPU does not need it.
void Replay(Stream stream, CUgraphExec_st* recorded, const std::function<void()>& body);
void Forget(CUgraphExec_st* recorded) noexcept;

}  // namespace shiftrt::gpu
