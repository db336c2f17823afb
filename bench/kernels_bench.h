// The kernels one by one, under Google Benchmark.
#pragma once

#include <string>
#include <vector>

#include "runtime/context.h"

namespace shiftrt {

// Runs the benchmarks; `arguments` are Google Benchmark's own flags (--benchmark_filter=..., --benchmark_format=json).
// Counters: FLOP/s and bytes/s as each kernel's contract counts them. Returns an exit status.
int BenchKernels(const Context& context, const std::vector<std::string>& arguments);

}  // namespace shiftrt
