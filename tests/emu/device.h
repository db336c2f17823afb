// What the emulated device is made to be, and what went over its bus.
#pragma once

#include <cstdint>

namespace shiftrt::emu {

// Device memory in bytes until this goes, when it is what it was.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  int64_t before_;
};

// Copied from the device to the host since the program began.
int64_t BytesToHost();

}  // namespace shiftrt::emu
