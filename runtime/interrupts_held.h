// SPDX-License-Identifier: Apache-2.0
// Delays an interruption while data that must not be lost are written.
#pragma once

namespace shiftrt {

// While an InterruptsHeld lives, CheckInterrupted() (runtime/files.h) does not throw in any thread. An interruption
// that was requested meanwhile takes effect afterwards.
class InterruptsHeld {
 public:
  InterruptsHeld();
  ~InterruptsHeld();
  InterruptsHeld(const InterruptsHeld&) = delete;
  InterruptsHeld& operator=(const InterruptsHeld&) = delete;

  static bool Any() noexcept;  // true while one lives
};

}  // namespace shiftrt
