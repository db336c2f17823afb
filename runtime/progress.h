// SPDX-License-Identifier: Apache-2.0
// Reports of progress (include/shiftrt/progress.h) for callers that want none.
#pragma once

#include <cstdint>
#include <string_view>

#include "include/shiftrt/progress.h"
#include "runtime/files.h"

namespace shiftrt {

// Displays nothing.
class NoProgress : public Progress {
 public:
  void Begin(std::string_view, int64_t) override {}
  void Advance(int64_t) override { CheckInterrupted(); }
  void End() override {}
};

}  // namespace shiftrt
