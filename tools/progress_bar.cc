// SPDX-License-Identifier: Apache-2.0
#include "tools/progress_bar.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "runtime/files.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 1.0;  // seconds before anything is shown
constexpr double kRedraw = 0.1;    // seconds between two pictures
constexpr int kWidth = 30;

}  // namespace

std::string Bar(double share) {
  const std::string bar(static_cast<size_t>(share * kWidth), '#');
  return fmt::format("[{:<{}}] {:3.0f}%", bar, kWidth, 100 * share);
}

std::string Duration(double seconds) {
  const int64_t whole = std::llround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

ProgressBar::ProgressBar(double line_seconds) : terminal_(::isatty(STDERR_FILENO) != 0), line_seconds_(line_seconds) {}

double ProgressBar::Elapsed() const { return SecondsSince(start_); }

void ProgressBar::Begin(std::string_view phase, int64_t total) {
  std::fflush(stdout);  // a failure stays with the stream, and the end of the command reports it
  phase_ = phase;
  total_ = total;
  done_ = 0;
  start_ = drawn_ = Clock::now();
}

void ProgressBar::Advance(int64_t count) {
  CheckInterrupted();
  done_ += count;
  const double elapsed = Elapsed();
  if (elapsed < kPatience || done_ == 0 || total_ == 0) return;
  if (SecondsSince(drawn_) < (terminal_ ? kRedraw : line_seconds_)) return;
  drawn_ = Clock::now();
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  if (!terminal_) {
    std::fprintf(stderr, "%s\n",
                 fmt::format("{}: {:.0f}%, {} left", phase_, 100 * share, Duration(elapsed / share - elapsed)).c_str());
    return;
  }
  std::fprintf(stderr, "\r\033[K%s",
               fmt::format("{} {}  {:.3g}/s  {} left", phase_, Bar(share), static_cast<double>(done_) / elapsed,
                           Duration(elapsed / share - elapsed))
                   .c_str());
}

void ProgressBar::End() {
  const double elapsed = Elapsed();
  if (elapsed < kPatience) return;
  if (terminal_) std::fputs("\r\033[K", stderr);
  std::fprintf(stderr, "%s\n", fmt::format("{}: {}", phase_, Duration(elapsed)).c_str());
}

}  // namespace shiftrt
