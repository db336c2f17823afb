// SPDX-License-Identifier: Apache-2.0
// Puts an interruption off while something that must not be lost is written.
#pragma once

namespace shiftrt {

// While one of these lives, CheckInterrupted() (runtime/files.h) does not throw, in any thread. What was requested
// meanwhile stays requested.
class InterruptsHeld {
 public:
  InterruptsHeld();
  ~InterruptsHeld();
  InterruptsHeld(const InterruptsHeld&) = delete;
  InterruptsHeld& operator=(const InterruptsHeld&) = delete;
};

}  // namespace shiftrt
