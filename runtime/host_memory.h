// SPDX-License-Identifier: Apache-2.0
// The host memory that the program may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "runtime/context.h"

namespace shiftrt {

// Bytes this process may still use without swapping: the smaller of the kernel's available memory and the rest of the
// control group's limit. File pages, such as those of a mapped model, count as free. The values are read from the
// files of proc(5) and cgroup v2 below `root`.
int64_t AvailableMemory(const std::filesystem::path& root = "/");

// Bytes that sums over calibration tokens, or activations kept for gradients, may use: context.memory, or if it is 0,
// 3/4 of the available memory.
int64_t UsableMemory(const Context& context);

// The peak memory of this process in bytes: what it allocated, and the pages of files that it had mapped.
int64_t PeakMemory();

// Reserves so many bytes of addresses (at least one) without memory: reading or writing them ends the program. They are
// freed with the last copy of the pointer.
std::shared_ptr<const void> ReserveAddresses(int64_t bytes);

// Memory of so many bytes that belongs to a file without a name in `directory`: the system writes it there when it
// needs the memory, and ReleasePages() makes this process give it back at once. Where the directory has no room, it is
// a file in memory, which takes as much as ordinary memory does. Freed with the last copy of the pointer. Throws
// std::bad_alloc.
std::shared_ptr<std::byte> AllocateInFile(int64_t bytes, const std::filesystem::path& directory);

// Tells the system that it may free the memory that holds these bytes of a mapped file. They are read again when they
// are used again.
void ReleasePages(std::span<const std::byte> mapped);

// Moves these bytes to huge pages at the same addresses, by all threads, as far as whole huge pages lie within a range
// or within neighbouring ones. A program that reads a mapped file again and again needs fewer lookups of addresses
// then. Does nothing where the system has no huge pages, or less memory than a quarter more than the bytes. Nobody may
// write the bytes meanwhile.
void MoveToHugePages(const Context& context, std::vector<std::span<const std::byte>> ranges);

}  // namespace shiftrt
