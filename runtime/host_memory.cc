// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "runtime/descriptor.h"
#include "runtime/parallel.h"
#include "runtime/tensor.h"

namespace shiftrt {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr size_t kHugePage = 2u << 20;  // bytes

// The number that follows `name` in a file of names and numbers; `fallback` if there is none.
int64_t Named(const std::filesystem::path& path, const std::string& name, int64_t fallback) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t value = 0;
    if (word == name && file >> value) return value;
  }
  return fallback;
}

// The number in a file; `fallback` if it contains "max" or does not exist.
int64_t Alone(const std::filesystem::path& path, int64_t fallback) {
  int64_t value = 0;
  return std::ifstream(path) >> value ? value : fallback;
}

// The path of this process's control group below the root of all groups (version 2); "" if it is the root or unknown.
std::filesystem::path ControlGroup(const std::filesystem::path& root) {
  constexpr std::string_view kVersion2 = "0::/";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kVersion2)) return line.substr(kVersion2.size());
  return {};
}

int64_t LeftOfControlGroup(const std::filesystem::path& group) {
  const int64_t limit = Alone(group / "memory.max", kUnlimited);
  if (limit == kUnlimited) return kUnlimited;
  const int64_t pages =
      Named(group / "memory.stat", "inactive_file", 0) + Named(group / "memory.stat", "active_file", 0);
  return std::max<int64_t>(0, limit - Alone(group / "memory.current", 0) + pages);
}

}  // namespace

int64_t AvailableMemory(const std::filesystem::path& root) {
  const int64_t kib = Named(root / "proc/meminfo", "MemAvailable:", kUnlimited / 1024);
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  int64_t left = std::min(kib * 1024, LeftOfControlGroup(groups));
  // The group of this process and those that contain it, each of which may have a limit. In a container with groups of
  // its own it is the root.
  for (std::filesystem::path group = ControlGroup(root); !group.empty(); group = group.parent_path())
    left = std::min(left, LeftOfControlGroup(groups / group));
  return left;
}

void* AllocateAligned(size_t bytes) {
  constexpr size_t kLine = 64;
  const bool huge = bytes >= 2 * kHugePage;
  const size_t align = huge ? kHugePage : kLine, whole = (bytes + align - 1) / align * align;
  void* const memory = std::aligned_alloc(align, whole);
  if (memory == nullptr) throw std::bad_alloc();
  // Products touch rows that are far apart: with small pages each of them costs a lookup, and a fault at first. A
  // system without huge pages refuses, which changes nothing but the speed.
  if (huge) ::madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

int64_t UsableMemory(const Context& context) { return context.memory > 0 ? context.memory : AvailableMemory() / 4 * 3; }

int64_t PeakMemory() { return Named("/proc/self/status", "VmHWM:", 0) * 1024; }

std::shared_ptr<const void> ReserveAddresses(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* const at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return {at, [size](const void* address) { ::munmap(const_cast<void*>(address), size); }};
}

std::shared_ptr<std::byte> AllocateInFile(int64_t bytes, const std::filesystem::path& directory) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  constexpr mode_t kOwnersAlone = 0600;
  const auto reserve = [&](const Descriptor& file) {
    return file.is_open() && ::posix_fallocate(file.get(), 0, static_cast<off_t>(size)) == 0;
  };
  Descriptor file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnersAlone));
  if (!reserve(file)) {
    file = Descriptor(::memfd_create("shiftrt", MFD_CLOEXEC));
    if (!reserve(file)) throw std::bad_alloc();
  }
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(at), [size](std::byte* address) { ::munmap(address, size); }};
}

void ReleasePages(std::span<const std::byte> mapped) {
  // Only whole pages are released, because the others hold neighbouring bytes too.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t skipped = (page - reinterpret_cast<uintptr_t>(mapped.data()) % page) % page;
  if (mapped.size() < skipped + page) return;
  const size_t whole = (mapped.size() - skipped) / page * page;
  ::madvise(const_cast<std::byte*>(mapped.data()) + skipped, whole, MADV_DONTNEED);
}

void MoveToHugePages(const Context& context, std::vector<std::span<const std::byte>> ranges) {
  constexpr ptrdiff_t kAlignment = 4096;  // the most that lies between neighbouring tensors of a file
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string enabled;
  std::getline(setting, enabled);
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) return;

  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
  struct Area {
    std::byte *begin, *end;
  };
  std::vector<Area> areas;
  for (const std::span<const std::byte> range : ranges) {
    auto* const begin = const_cast<std::byte*>(range.data());
    std::byte* const end = begin + range.size();
    if (!areas.empty() && begin - areas.back().end <= kAlignment)
      areas.back().end = std::max(areas.back().end, end);
    else
      areas.push_back({begin, end});
  }
  const auto past = [](const std::byte* at) { return reinterpret_cast<uintptr_t>(at) % kHugePage; };
  size_t bytes = 0;
  for (Area& area : areas) {
    area.begin += (kHugePage - past(area.begin)) % kHugePage;
    area.end = std::max(area.begin, area.end - past(area.end));
    bytes += static_cast<size_t>(area.end - area.begin);
  }
  if (bytes == 0 || static_cast<int64_t>(bytes / 4 * 5) > AvailableMemory()) return;

  // Copies are made elsewhere, and then moved, so that other threads read the bytes at any time: a piece after the
  // other, because the pages of the file count as memory of this process until then.
  constexpr size_t kPiece = 32 * kHugePage, kReserved = kPiece + kHugePage;
  void* const memory = ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  auto* const first = static_cast<std::byte*>(memory);
  std::byte* const copy = first + (kHugePage - past(first)) % kHugePage;
  ::madvise(copy, kPiece, MADV_HUGEPAGE);
  bool moving = true;
  for (const Area& area : areas) {
    for (std::byte* at = area.begin; at < area.end && moving; at += kPiece) {
      const size_t size = std::min(kPiece, static_cast<size_t>(area.end - at));
      ParallelFor(context, static_cast<int64_t>(size / kHugePage), 1, [&](int64_t begin, int64_t end) {
        const size_t from = static_cast<size_t>(begin) * kHugePage, to = static_cast<size_t>(end) * kHugePage;
        std::memcpy(copy + from, at + from, to - from);
      });
      // The addresses of the copy stay reserved, so that no other thread is given them.
      moving = ::mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at) != MAP_FAILED;
      if (moving) ::mprotect(at, size, PROT_READ);
    }
  }
  ::munmap(memory, kReserved);
}

}  // namespace shiftrt
