// SPDX-License-Identifier: Apache-2.0
// Benchmarks of single kernels, using Google Benchmark.
#pragma once

#include <string>
#include <vector>

#include "runtime/context.h"

namespace shiftrt {

// Runs the benchmarks; `arguments` are the flags of Google Benchmark (--benchmark_filter=..., --benchmark_format=json).
// The counters are FLOP/s and bytes/s, counted as in the contract of each kernel. Returns an exit status.
int BenchKernels(const Context& context, const std::vector<std::string>& arguments);

}  // namespace shiftrt
