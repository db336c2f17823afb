// Speed on the GPU: kernel by kernel and whole decoders, each beside its floor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/model_bench.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

// The device's limits, measured: bytes a second of a copy, counting reads and writes, and FLOP a second of large
// products, bfloat16 and float64.
struct GpuLimits {
  double copy_bandwidth = 0, matrix_peak = 0, double_peak = 0;
};

struct GpuKernelTime {
  std::string room;  // kernels/cuda/<room>.cu
  std::string name;  // what it ran on
  double seconds = 0;
  double bytes = 0, flops = 0;  // that it cannot do without
  double floor = 0;             // the larger of the times they take at the limits
};

struct GpuKernelBench {
  gpu::DeviceInfo device;
  GpuLimits limits;
  std::vector<GpuKernelTime> kernels;
};
// Every kernel at the sizes of Llama-3.1-8B in bfloat16, on random data. Throws Error without a GPU.
GpuKernelBench BenchGpuKernels(const Context& context, Progress& progress);

struct GpuVariantTime {
  std::string name;  // original, pruned, pruned + LRA 64, pruned + merged LRA 64
  double decode_tokens_per_second = 0, decode_floor = 0;
};
struct GpuModelBench {
  std::vector<GpuVariantTime> variants;  // in that order
  double prefill_tokens_per_second = 0, prefill_floor = 0;
};
// One model: decoding of four plans (a quarter of the blocks removed, adapters of random values), a round of each in
// turn, and prefill of the original.
GpuModelBench BenchGpuModel(const Context& context, std::shared_ptr<const Weights> weights, const GpuLimits& limits,
                            const ModelBenchOptions& options, Progress& progress);

}  // namespace shiftrt
