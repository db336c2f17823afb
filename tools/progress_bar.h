// SPDX-License-Identifier: Apache-2.0
// Progress on standard error: a bar with the time left on a terminal, elsewhere one line per long phase.
#pragma once

#include <chrono>
#include <string>

#include "runtime/progress.h"

namespace shiftrt {

// Shows nothing for phases that end within a second. Advance() throws Interrupted after Ctrl-C.
class ProgressBar : public Progress {
 public:
  ProgressBar();
  void Begin(std::string_view phase, int64_t total) override;
  void Advance(int64_t count) override;
  void End() override;

 private:
  double Elapsed() const;

  bool terminal_ = false;
  std::string phase_;
  int64_t total_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace shiftrt
