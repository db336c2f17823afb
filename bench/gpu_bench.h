// Speed on the GPU of each kernel and of whole decoders, with its floor: the least time that the device's limits allow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/model_bench.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

// The measured limits of the device: bytes per second of a copy, counting reads and writes, and FLOP per second of
// large products in bfloat16 and in float64.
struct GpuLimits {
  double copy_bandwidth = 0, matrix_peak = 0, double_peak = 0;
};

struct GpuKernelTime {
  std::string room;  // kernels/cuda/<room>.cu
  std::string name;  // the operation and its size
  double seconds = 0;
  double bytes = 0, flops = 0;  // the least that the operation needs
  double floor = 0;             // the larger of the times that these take at the limits
};

struct GpuKernelBench {
  gpu::DeviceInfo device;
  GpuLimits limits;
  std::vector<GpuKernelTime> kernels;
};
// Times every kernel at the sizes of Llama-3.1-8B in bfloat16, on random data. Throws Error without a GPU.
GpuKernelBench BenchGpuKernels(const Context& context, Progress& progress);

struct GpuVariantTime {
  std::string name;  // original, pruned, pruned + LRA 64, pruned + merged LRA 64
  double decode_tokens_per_second = 0, decode_floor = 0;
};
struct GpuModelBench {
  std::vector<GpuVariantTime> variants;  // in that order
  double prefill_tokens_per_second = 0, prefill_floor = 0;
};
// Times one model: decoding of four plans (a quarter of the blocks removed, adapters of random values) in alternating
// rounds, and prefill of the original.
GpuModelBench BenchGpuModel(const Context& context, std::shared_ptr<const Weights> weights, const GpuLimits& limits,
                            const ModelBenchOptions& options, Progress& progress);

}  // namespace shiftrt
