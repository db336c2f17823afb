#include <nlohmann/json.hpp>

#include "bench/gpu_bench.h"
#include "runtime/check.h"
#include "tools/bench_options.h"

namespace shiftrt {

int BenchGpu(const BenchOptions& options) {
  if (!gpu::WhyUnavailable().empty()) FailUsage("bench gpu: {}", gpu::WhyUnavailable());
  const Context context = options.common.MakeContext();
  if (context.device != Device::kCuda) FailUsage("bench gpu with --device cpu");
  const auto weights = OpenWeights(options);
  const auto progress = options.common.MakeProgress();
  const GpuKernelBench kernels = BenchGpuKernels(*progress);
  const GpuModelBench model = BenchGpuModel(context, weights, kernels.limits, options.bench, *progress);

  fmt::print("{}, compute capability {}.{}; copies at {:.0f} GB/s, bfloat16 products at {:.0f} TFLOP/s\n",
             kernels.device.name, kernels.device.major, kernels.device.minor, kernels.limits.copy_bandwidth / 1e9,
             kernels.limits.matrix_peak / 1e12);
  nlohmann::json json = {{"device", kernels.device.name},
                         {"compute_capability", fmt::format("{}.{}", kernels.device.major, kernels.device.minor)},
                         {"copy_bandwidth", kernels.limits.copy_bandwidth},
                         {"matrix_peak", kernels.limits.matrix_peak},
                         {"kernels", nlohmann::json::array()},
                         {"variants", nlohmann::json::array()},
                         {"prefill_tokens_per_second", model.prefill_tokens_per_second},
                         {"prefill_floor", model.prefill_floor}};
  for (const GpuKernelTime& time : kernels.kernels) {
    fmt::print("{:18} {:34} {:9.1f} us, floor {:8.1f} us, {:3.0f}% of the limit\n", time.room, time.name,
               time.seconds * 1e6, time.floor * 1e6, 100 * time.floor / time.seconds);
    json["kernels"].push_back({{"room", time.room},
                               {"name", time.name},
                               {"seconds", time.seconds},
                               {"bytes", time.bytes},
                               {"flops", time.flops},
                               {"floor", time.floor}});
  }
  for (const GpuVariantTime& variant : model.variants) {
    fmt::print("decode, {:24} {:8.1f} tokens/s, floor {:8.1f}\n", variant.name, variant.decode_tokens_per_second,
               variant.decode_floor);
    json["variants"].push_back({{"name", variant.name},
                                {"decode_tokens_per_second", variant.decode_tokens_per_second},
                                {"decode_floor", variant.decode_floor}});
  }
  fmt::print("prefill of {}: {:.0f} tokens/s, floor {:.0f}\n", options.bench.prefill, model.prefill_tokens_per_second,
             model.prefill_floor);
  options.common.WriteJson(json);
  return 0;
}

}  // namespace shiftrt
