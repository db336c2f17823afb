// SPDX-License-Identifier: Apache-2.0
#include "tools/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/files.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 1.0;  // seconds before anything is shown
constexpr double kRedraw = 0.1;    // seconds between two pictures
constexpr double kLong = 5.0;      // seconds from which a computation within a phase is shown
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

void ProgressBar::Within(std::string_view what, double share) {
  Advance(0);
  if (share <= 0) {
    within_start_ = Clock::now();
    within_shown_ = false;
    return;
  }
  const double elapsed = SecondsSince(within_start_), least = std::min(kLong, line_seconds_);
  if (elapsed < least || (share >= 1 && !within_shown_)) return;
  const std::string name = fmt::format("{}: {}", phase_, what);
  if (share >= 1) {
    if (!terminal_) std::fprintf(stderr, "%s\n", fmt::format("{}: {}", name, Duration(elapsed)).c_str());
    return;
  }
  const double left = elapsed / share - elapsed;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", fmt::format("{} {}  {} left", name, Bar(share), Duration(left)).c_str());
  } else if (!within_shown_ || SecondsSince(drawn_) >= line_seconds_) {
    std::fprintf(stderr, "%s\n", fmt::format("{}: {:.0f}%, {} left", name, 100 * share, Duration(left)).c_str());
  } else {
    return;
  }
  within_shown_ = true;
  drawn_ = Clock::now();
}

void ProgressBar::End() {
  const double elapsed = Elapsed();
  if (elapsed < kPatience) return;
  if (terminal_) std::fputs("\r\033[K", stderr);
  std::fprintf(stderr, "%s\n", fmt::format("{}: {}", phase_, Duration(elapsed)).c_str());
}

}  // namespace shiftrt
