// SPDX-License-Identifier: Apache-2.0
#include "tools/progress_bar.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace shiftrt {
namespace {

// Batch systems and files show where a long phase stands.
TEST(ProgressBar, WritesLinesWhereStandardErrorIsNoTerminal) {
  testing::internal::CaptureStderr();
  ProgressBar often(/*line_seconds=*/0), seldom(/*line_seconds=*/60);
  often.Begin("counting", 4);
  seldom.Begin("waiting", 4);
  often.Advance(1);  // within the first second nothing is shown
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  often.Advance(3);
  seldom.Advance(2);
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines, "counting: 100%, 0:00 left\n");
}

// The solution of a large system is a computation within a phase.
TEST(ProgressBar, ShowsALongComputationWithinAPhase) {
  testing::internal::CaptureStderr();
  ProgressBar often(/*line_seconds=*/0), seldom(/*line_seconds=*/60);
  for (ProgressBar* const bar : {&often, &seldom}) {
    bar->Begin("fitting", 4);
    bar->Within("a system", 0);
    bar->Within("a system", 0.5);
    bar->Within("a system", 1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fitting: a system: 50%, 0:00 left\nfitting: a system: 0:00\n");
}

// The file has what was printed before a phase while the phase runs.
TEST(ProgressBar, FlushesStandardOutputBeforeAPhase) {
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ::dup2(::fileno(file), STDOUT_FILENO);
  std::fputs("a result", stdout);
  ProgressBar().Begin("the next phase", 1);
  const off_t written = ::lseek(STDOUT_FILENO, 0, SEEK_END);
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  std::fclose(file);
  EXPECT_EQ(written, 8);
}

}  // namespace
}  // namespace shiftrt
