// How much of the host's memory work may take.
#pragma once

#include <cstdint>
#include <filesystem>

#include "runtime/context.h"

namespace shiftrt {

// Bytes this process may still use without anything being swapped out: what the kernel calls available, or what is left
// of the control group's limit where that is less. File pages, such as a mapped model's, count as free. The files are
// those of proc(5) and of cgroup v2, looked up below `root`.
int64_t AvailableMemory(const std::filesystem::path& root = "/");

// Bytes that sums over calibration tokens may take: context.memory, or without one three quarters of what is available.
int64_t MemoryForSums(const Context& context);

}  // namespace shiftrt
