// SPDX-License-Identifier: Apache-2.0
// Settings of the emulated devices, and counters of copies and waits.
#pragma once

#include <cstdint>

namespace shiftrt::emu {

// Sets the number of devices. The destructor sets it to one.
class Devices {
 public:
  explicit Devices(int count);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
};

// Sets the memory of each device in bytes. The destructor restores the previous value.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  int64_t before_;
};

// Sets the major compute capability of the devices, which is 8 unless the environment variable
// SHIFTRT_EMULATED_CAPABILITY says otherwise. The destructor restores the previous value.
class ComputeCapability {
 public:
  explicit ComputeCapability(int major);
  ~ComputeCapability();
  ComputeCapability(const ComputeCapability&) = delete;
  ComputeCapability& operator=(const ComputeCapability&) = delete;

 private:
  int before_;
};

// No launch graph can be recorded while this object exists.
class RefusedRecordings {
 public:
  RefusedRecordings();
  ~RefusedRecordings();
  RefusedRecordings(const RefusedRecordings&) = delete;
  RefusedRecordings& operator=(const RefusedRecordings&) = delete;
};
// Replays of recorded launches since the start of the program.
int64_t Replays();

// Bytes copied from devices to the host, and from the host to devices, since the start of the program.
int64_t BytesToHost();
int64_t BytesToDevice();
// How often, since the start of the program, the host waited until a stream had completed all its work.
int64_t Drains();

}  // namespace shiftrt::emu
