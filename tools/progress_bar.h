// SPDX-License-Identifier: Apache-2.0
// Progress on standard error: a bar with the time left on a terminal; elsewhere a line per minute, and one at the end
// of a long phase.
#pragma once

#include <chrono>
#include <string>

#include "runtime/progress.h"

namespace shiftrt {

// "[######        ]  40%" of a share between 0 and 1.
std::string Bar(double share);
// "1:05" of seconds.
std::string Duration(double seconds);

// A computation within a phase is shown once it has run for a few seconds, which is when its end can be estimated.
// Shows nothing for phases that end within a second. Advance() throws Interrupted after Ctrl-C. Begin() flushes
// standard output, so that a file or a batch system shows the results of the phases before while this one runs.
class ProgressBar : public Progress {
 public:
  // `line_seconds`: the time between two lines where standard error is no terminal.
  explicit ProgressBar(double line_seconds = 60);
  void Begin(std::string_view phase, int64_t total) override;
  void Advance(int64_t count) override;
  void Within(std::string_view what, double share) override;
  void End() override;

 private:
  double Elapsed() const;

  bool terminal_ = false;
  double line_seconds_;
  std::string phase_;
  int64_t total_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point start_, drawn_, within_start_;
  bool within_shown_ = false;
};

}  // namespace shiftrt
