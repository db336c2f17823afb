// SPDX-License-Identifier: Apache-2.0
#include "runtime/check.h"

namespace shiftrt {

static double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

OutOfMemory::OutOfMemory(const char* what, int64_t asked_bytes, int64_t free_bytes, int64_t total_bytes)
    : Error(fmt::format("the GPU is out of memory: {} asks for {:.1f} MiB, {:.1f} of {:.1f} MiB are free", what,
                        MiB(asked_bytes), MiB(free_bytes), MiB(total_bytes))),
      free_bytes(free_bytes) {}

OutOfMemory::OutOfMemory(const OutOfMemory& error, const std::string& advice)
    : Error(std::string(error.what()) + "; " + advice), free_bytes(error.free_bytes) {}

}  // namespace shiftrt
