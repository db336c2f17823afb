// What the emulated device is made to be, and what went over its bus.
#pragma once

#include <cstdint>

namespace shiftrt::emu {

// How many devices there are until this goes, when there is one again.
class Devices {
 public:
  explicit Devices(int count);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
};

// Each device's memory in bytes until this goes, when it is what it was.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  int64_t before_;
};

// Copied from devices to the host since the program began.
int64_t BytesToHost();
// Since then: how often the host waited until a stream had done all it was given.
int64_t Drains();

}  // namespace shiftrt::emu
