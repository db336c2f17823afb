// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace shiftrt {

namespace {

// Spins for about 50 microseconds: longer than the serial code between two loops of a decoder takes, and short compared
// with the milliseconds for which the system lets another program have the core.
class Spin {
 public:
  // Pauses briefly. False once the time is over.
  bool Once() {
    Pause();
    if (++pauses_ % kPausesPerLook != 0) return true;
    const Time now = std::chrono::steady_clock::now();
    if (end_ == Time{}) end_ = now + kSpin;
    return now < end_;
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::microseconds kSpin{50};
  static constexpr uint32_t kPausesPerLook = 16;  // at the clock

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  uint32_t pauses_ = 0;
  Time end_{};
};

// One thread that runs ranges for others.
//
// Its state is a phase and a ticket, which counts the ranges that were handed to it. Whoever completes a range, the
// worker or the caller that takes it back, moves on to the next ticket. So a caller that waits for its own ticket is
// not misled by a range of another caller that follows at once.
class alignas(64) Worker {
 public:
  // Hands the worker a range if it is free, and sets the ticket for TakeBack and Await.
  bool Hand(LoopBody body, int64_t begin, int64_t end, uint32_t* ticket) {
    uint32_t state = state_.load(std::memory_order_relaxed);
    const uint32_t phase = Phase(state);
    if (phase != kFree && phase != kAsleep) return false;
    if (!state_.compare_exchange_strong(state, Ticket(state) | kFilled, std::memory_order_acquire)) return false;
    *ticket = Ticket(state);
    body_ = body;
    begin_ = begin;
    end_ = end;
    if (phase == kAsleep) {
      // This must be sequentially consistent, so that the notification does not miss a worker that is about to sleep.
      state_.exchange(*ticket | kReady);
      state_.notify_all();
    } else {
      state_.store(*ticket | kReady, std::memory_order_release);
    }
    return true;
  }

  // Takes the range back, if the worker has not begun it; the caller then runs it.
  bool TakeBack(uint32_t ticket) {
    uint32_t state = ticket | kReady;
    return state_.compare_exchange_strong(state, Next(ticket) | kFree, std::memory_order_acq_rel);
  }

  // Waits until the range that was handed out with the ticket has been run.
  void Await(uint32_t ticket) {
    Spin spin;
    for (;;) {
      uint32_t state = state_.load(std::memory_order_acquire);
      if (Ticket(state) != ticket) return;
      if (spin.Once()) continue;
      if (Phase(state) == kRunning && !state_.compare_exchange_strong(state, ticket | kAwaited)) continue;
      state_.wait(ticket | kAwaited, std::memory_order_acquire);
    }
  }

  // The function of the thread; it never returns.
  [[noreturn]] void Serve(bool may_spin) noexcept {
    for (;;) {
      const uint32_t ticket = NextRange(may_spin);
      body_.run(body_.object, begin_, end_);
      // This must be sequentially consistent, as in Hand.
      if (Phase(state_.exchange(Next(ticket) | kFree)) == kAwaited) state_.notify_all();
    }
  }

 private:
  enum : uint32_t {
    kFree,     // no caller uses it; the worker spins
    kAsleep,   // no caller uses it; the worker is blocked, or about to be
    kFilled,   // a caller is writing the range
    kReady,    // the range may be begun by the worker, or taken back
    kRunning,  // the worker runs the range
    kAwaited,  // the worker runs it, and the caller is blocked or about to be
    kPhases = 8
  };
  static uint32_t Phase(uint32_t state) { return state % kPhases; }
  static uint32_t Ticket(uint32_t state) { return state - Phase(state); }
  static uint32_t Next(uint32_t ticket) { return ticket + kPhases; }

  // Waits for a range and begins it. Returns its ticket.
  uint32_t NextRange(bool may_spin) {
    Spin spin;
    for (;;) {
      uint32_t state = state_.load(std::memory_order_relaxed);
      const uint32_t ticket = Ticket(state);
      if (Phase(state) == kReady) {
        if (state_.compare_exchange_strong(state, ticket | kRunning, std::memory_order_acquire)) return ticket;
        continue;
      }
      if (Phase(state) == kFilled || (may_spin && spin.Once())) continue;
      if (Phase(state) == kFree && !state_.compare_exchange_strong(state, ticket | kAsleep)) continue;
      state_.wait(ticket | kAsleep, std::memory_order_relaxed);
      spin = {};
    }
  }

  std::atomic<uint32_t> state_ = kFree;
  LoopBody body_{};
  int64_t begin_ = 0, end_ = 0;
};

// The workers of the process. They use no other object and the pool is never destroyed, so the order in which a
// program's static objects are destroyed does not matter.
class Pool {
 public:
  constexpr Pool() = default;

  void Run(int64_t n, int64_t parts, LoopBody body) noexcept {
    const auto begin = [&](int64_t part) { return n * part / parts; };
    // handed[i] runs part i + 1.
    struct {
      Worker* worker;
      uint32_t ticket;
    } handed[kMaxWorkers];
    const int wanted = static_cast<int>(std::min<int64_t>(parts - 1, kMaxWorkers));
    int count = 0, tried = 0;
    const auto hand_out = [&](int started) {
      for (; tried < started && count < wanted; ++tried) {
        handed[count].worker = &workers_[tried];
        if (workers_[tried].Hand(body, begin(count + 1), begin(count + 2), &handed[count].ticket)) ++count;
      }
    };
    hand_out(started_.load(std::memory_order_acquire));
    if (count < wanted && tried < Allowed(wanted)) hand_out(Start(tried + wanted - count, wanted));
    body.run(body.object, 0, begin(1));
    for (int64_t part = count + 1; part < parts; ++part) body.run(body.object, begin(part), begin(part + 1));
    // Ranges that no worker has begun by now are taken back: their workers are asleep, or another program has their
    // cores.
    for (int i = count - 1; i >= 0; --i) {
      if (!handed[i].worker->TakeBack(handed[i].ticket)) continue;
      body.run(body.object, begin(i + 1), begin(i + 2));
      handed[i].worker = nullptr;
    }
    for (int i = 0; i < count; ++i)
      if (handed[i].worker != nullptr) handed[i].worker->Await(handed[i].ticket);
  }

 private:
  static constexpr int kMaxWorkers = 511;

  // The allowed number of workers if a loop can use `wanted`: at least those, and more for several loops at once only
  // as far as there are cores.
  int Allowed(int wanted) const {
    return std::min(std::max(wanted, spare_cores_.load(std::memory_order_relaxed)),
                    limit_.load(std::memory_order_relaxed));
  }
  // Starts workers until there are `count`, or as many as are allowed. Returns how many there are.
  int Start(int count, int wanted);

  Worker workers_[kMaxWorkers];
  std::atomic<int> started_ = 0;
  std::atomic<int> spare_cores_ = kMaxWorkers;  // besides the calling thread's; not looked up yet
  std::atomic<int> limit_ = kMaxWorkers;        // less once the system has refused a thread
  std::mutex starting_;
};

constinit Pool pool;

void StartThread(Worker& worker, bool may_spin) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([&worker, may_spin] { worker.Serve(may_spin); }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int Pool::Start(int count, int wanted) {
  const std::scoped_lock lock(starting_);
  // A child made by fork() has a copy of this memory but none of the threads.
  static const bool watched = pthread_atfork(nullptr, nullptr, [] { std::construct_at(&pool); }) == 0;
  if (!watched) limit_ = 0;
  spare_cores_ = Cores() - 1;
  const int allowed = std::min(count, Allowed(wanted));
  int started = started_.load();
  try {
    for (; started < allowed; ++started) StartThread(workers_[started], started < spare_cores_);
  } catch (const std::system_error&) {
    limit_ = started;
  }
  started_ = started;
  return started;
}

}  // namespace

void RunLoop(int64_t n, int64_t parts, LoopBody body) noexcept { pool.Run(n, parts, body); }

}  // namespace shiftrt
