// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace shiftrt {
namespace {

int64_t SumOfSquares(int threads, int64_t n) {
  std::vector<int64_t> squares(n);
  ParallelFor(threads, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) squares[i] = i * i;
  });
  int64_t sum = 0;
  for (const int64_t square : squares) sum += square;
  return sum;
}
constexpr int64_t Expected(int64_t n) { return (n - 1) * n * (2 * n - 1) / 6; }

TEST(ParallelFor, CoversEachIndexOnceInRangesNoShorterThanTheGrain) {
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 16, 2000}) {
      for (const int threads : {1, 2, 3, 5}) {
        std::vector<int> visits(n, 0);
        std::vector<int64_t> lengths(n, 0);
        ParallelFor(Context{threads, Isa::kPortable}, n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
          lengths[begin] = end - begin;
        });
        EXPECT_EQ(visits, std::vector<int>(n, 1)) << n << " " << grain << " " << threads;
        int ranges = 0;
        for (const int64_t length : lengths) {
          ranges += length > 0;
          EXPECT_TRUE(length == 0 || length >= std::min(n, grain)) << n << " " << grain << " " << threads;
        }
        EXPECT_LE(ranges, threads);
      }
    }
  }
}

// Whatever the machine has.
TEST(ParallelFor, ManyMoreThreadsThanCores) {
  for (int round = 0; round < 20; ++round)
    for (const int threads : {2, 7, 40}) ASSERT_EQ(SumOfSquares(threads, 1000), Expected(1000));
}

// Either range waits for the other for a while. A worker that comes too late, on a busy machine, has another chance.
TEST(ParallelFor, RangesRunAtTheSameTime) {
  std::atomic<int> here = 0;
  std::atomic<bool> together = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!together && std::chrono::steady_clock::now() < deadline) {
    here = 0;
    ParallelFor(2, 2, 1, [&](int64_t begin, int64_t) {
      ++here;
      const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(begin == 0 ? 50 : 10);
      while (here < 2 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      if (here == 2) together = true;
    });
  }
  EXPECT_TRUE(together);
}

TEST(ParallelFor, WorkersThatSleepAreWokenOrDoneWithout) {
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
    ASSERT_EQ(SumOfSquares(3, 100), Expected(100));
  }
}

TEST(ParallelFor, SeveralThreadsRunLoopsAtTheSameTime) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 500; ++round) wrong += SumOfSquares(1 + caller, 50 + round) != Expected(50 + round);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelForEach, ThrowsTheFirstExceptionOnceAllCallsAreMade) {
  Context context;
  context.threads = 3;
  std::vector<std::atomic<int>> calls(20);
  try {
    ParallelForEach(context, std::ssize(calls), [&](int64_t i) {
      ++calls[i];
      if (i == 7 || i == 15) throw std::runtime_error(std::to_string(i));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
}

TEST(ParallelFor, ALoopInsideABody) {
  std::vector<int64_t> sums(40);
  ParallelFor(4, std::ssize(sums), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[i] = SumOfSquares(4, 100 + i);
  });
  for (int64_t i = 0; i < std::ssize(sums); ++i) EXPECT_EQ(sums[i], Expected(100 + i));
}

TEST(ParallelFor, AForkedProcessHasWorkersOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no threads after fork()";
#endif
  ASSERT_EQ(SumOfSquares(3, 100), Expected(100));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    for (int round = 0; round < 100; ++round)
      if (SumOfSquares(3, 100) != Expected(100)) ::_exit(1);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(SumOfSquares(3, 100), Expected(100));
}

}  // namespace
}  // namespace shiftrt
