// SPDX-License-Identifier: Apache-2.0
// Loops whose iterations are divided among threads.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "runtime/context.h"

namespace shiftrt {

// The body of a loop without its C++ type: run(object, begin, end) executes the indices [begin, end).
struct LoopBody {
  void (*run)(const void* object, int64_t begin, int64_t end);
  const void* object;
};

// Calls the body once for each of `parts` ranges that cover [0, n): range p is [n * p / parts, n * (p + 1) / parts).
//
// The calling thread runs range 0 and every range that no worker has begun. The workers belong to the process: they are
// started when a loop first needs them, wait for the next loop by spinning for some microseconds and then asleep, and
// live until the process ends. Several threads may run loops at the same time: each worker serves one of them at a
// time, and a loop that finds no worker free runs on its own thread. A loop inside a body is such a loop. A process
// made by fork() outside a body starts workers of its own. Workers receive no signals.
void RunLoop(int64_t n, int64_t parts, LoopBody body) noexcept;

// Calls body(begin, end) on disjoint ranges that cover [0, n): at most `threads` ranges, each at least `grain` long.
// The range that an index falls in depends only on n, grain and `threads`; which thread runs a range is not determined.
// `body` is called from several threads at once and must not throw.
template <typename Body>
void ParallelFor(int threads, int64_t n, int64_t grain, const Body& body) {
  int64_t parts = grain > 0 ? n / grain : n;
  if (parts > threads) parts = threads;
  if (parts <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  const auto run = [](const void* object, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(object))(begin, end);
  };
  RunLoop(n, parts, {run, &body});
}

// ParallelFor on context.threads threads.
template <typename Body>
void ParallelFor(const Context& context, int64_t n, int64_t grain, const Body& body) {
  ParallelFor(context.threads, n, grain, body);
}

// Calls body(i) for each i of [0, n) on context.threads threads. Unlike that of ParallelFor, this body may throw: the
// other calls are made all the same, and the exception of the lowest i is thrown at the end.
template <typename Body>
void ParallelForEach(const Context& context, int64_t n, const Body& body) {
  std::vector<std::exception_ptr> failed(n);
  ParallelFor(context, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      try {
        body(i);
      } catch (...) {
        failed[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : failed)
    if (error) std::rethrow_exception(error);
}

}  // namespace shiftrt
