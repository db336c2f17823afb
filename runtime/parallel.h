// Loops over threads.
#pragma once

#include <cstdint>

#include "runtime/context.h"

namespace shiftrt {

// Calls body(begin, end) on disjoint ranges that cover [0, n), one contiguous range a thread, at most context.threads
// of them and each at least `grain` long. Which range an index falls in depends only on n, grain and the number of
// threads. `body` must not throw.
template <typename Body>
void ParallelFor(const Context& context, int64_t n, int64_t grain, Body&& body) {
  int64_t parts = grain > 0 ? n / grain : n;
  if (parts > context.threads) parts = context.threads;
  if (parts <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(parts))
  for (int64_t p = 0; p < parts; ++p) body(n * p / parts, n * (p + 1) / parts);
}

}  // namespace shiftrt
