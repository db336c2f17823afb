// SPDX-License-Identifier: Apache-2.0
// The device memory of the emulator as a launch sees it. machine.h declares how it is allocated and copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shiftrt::emu {

inline constexpr uint8_t kPoison = 0xff;  // NaN in every floating-point type

// A copy of all device memory.
class Snapshot {
 public:
  Snapshot();
  void Restore() const;
  // Throws KernelError if memory differs from the snapshot, which another order of threads has left.
  void CheckSame(const std::string& kernel) const;
  // Marks the memory that has changed since the snapshot as written by a launch, which may still be running.
  void MarkWritten() const;

 private:
  std::map<void*, std::vector<std::byte>> saved_;
};

// Memory that a kernel must not read before it has waited for earlier launches: the allocations that launches have
// written since the last Finish(). They are NaN between Take() and GiveBack().
class Withheld {
 public:
  void Take();
  void GiveBack();
  bool Holds(const void* p) const;

 private:
  std::map<std::byte*, std::vector<std::byte>> held_;
};

}  // namespace shiftrt::emu
