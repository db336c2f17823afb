// Long computations report their progress through this interface; the tools decide how to display it.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/files.h"

namespace shiftrt {

class Progress {
 public:
  virtual ~Progress() = default;
  // A new phase of `total` units of work begins; the one before has ended.
  virtual void Begin(std::string_view phase, int64_t total) = 0;
  // `count` more units are done. Throws Interrupted if the user has asked to stop.
  virtual void Advance(int64_t count) = 0;
  virtual void End() = 0;
};

// Displays nothing.
class NoProgress : public Progress {
 public:
  void Begin(std::string_view, int64_t) override {}
  void Advance(int64_t) override { CheckInterrupted(); }
  void End() override {}
};

}  // namespace shiftrt
