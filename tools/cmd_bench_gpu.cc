#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/gpu_bench.h"
#include "runtime/check.h"
#include "tools/bench_options.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

Json ReportKernels(const GpuKernelBench& bench) {
  fmt::print(
      "{}, compute capability {}.{}; copies at {:.0f} GB/s, products at {:.0f} (bfloat16) and {:.1f} (float64) "
      "TFLOP/s\n",
      bench.device.name, bench.device.major, bench.device.minor, bench.limits.copy_bandwidth / 1e9,
      bench.limits.matrix_peak / 1e12, bench.limits.double_peak / 1e12);
  Json json = Json::array();
  for (const GpuKernelTime& time : bench.kernels) {
    fmt::print("{:18} {:34} {:9.1f} us, floor {:8.1f} us, {:3.0f}% of the limit\n", time.room, time.name,
               time.seconds * 1e6, time.floor * 1e6, 100 * time.floor / time.seconds);
    json.push_back({{"room", time.room},
                    {"name", time.name},
                    {"seconds", time.seconds},
                    {"bytes", time.bytes},
                    {"flops", time.flops},
                    {"floor", time.floor}});
  }
  return json;
}

Json ReportVariants(const ModelBenchOptions& options, const GpuModelBench& model) {
  Json json = Json::array();
  for (const GpuVariantTime& variant : model.variants) {
    fmt::print("decode at {}, {:24} {:8.1f} tokens/s, floor {:8.1f}\n", options.context, variant.name,
               variant.decode_tokens_per_second, variant.decode_floor);
    json.push_back({{"name", variant.name},
                    {"decode_tokens_per_second", variant.decode_tokens_per_second},
                    {"decode_floor", variant.decode_floor}});
  }
  fmt::print("prefill of {}: {:.0f} tokens/s, floor {:.0f}\n", options.prefill, model.prefill_tokens_per_second,
             model.prefill_floor);
  return json;
}

// What was found beside what was set out to be reached, which is meant for an H200.
struct Target {
  const char* what;
  double found;
  const char* wanted;
};

std::vector<Target> Targets(const GpuKernelBench& kernels, const GpuModelBench& model, const MainJobTimes& job) {
  const auto speed = [&](size_t variant) { return model.variants[variant].decode_tokens_per_second; };
  const auto attention = std::find_if(kernels.kernels.begin(), kernels.kernels.end(), [](const GpuKernelTime& time) {
    return std::string_view(time.room) == "attention_packed";
  });
  return {
      {"decode, share of the bandwidth floor", speed(0) / model.variants[0].decode_floor, ">= 0.85 (8B), 0.70 (1.5B)"},
      {"pruned over original", speed(1) / speed(0), ">= 1.28"},
      {"what adapters cost of it", 1 - speed(2) / speed(1), "<= 0.02"},
      {"what merged ones cost", 1 - speed(3) / speed(1), "<= 0.005"},
      {"prefill, share of the matrix peak", model.prefill_tokens_per_second / model.prefill_floor, ">= 0.60 (8B)"},
      {"packed attention, share of the peak", attention->floor / attention->seconds, ">= 0.50"},
      {"main job, seconds", job.total, "< 20 (8B)"},
  };
}

Json ReportTargets(const std::vector<Target>& targets) {
  Json json = Json::array();
  for (const Target& target : targets) {
    fmt::print("{:38} {:8.3f}   wanted {}\n", target.what, target.found, target.wanted);
    json.push_back({{"what", target.what}, {"found", target.found}, {"wanted", target.wanted}});
  }
  return json;
}

}  // namespace

int BenchGpu(const BenchOptions& options) {
  if (!gpu::WhyUnavailable().empty()) FailUsage("bench gpu: {}", gpu::WhyUnavailable());
  const Context context = options.common.MakeContext();
  if (context.device != Device::kCuda) FailUsage("bench gpu with --device cpu");
  Model model;
  model.weights = OpenWeights(options);
  const auto progress = options.common.MakeProgress();
  const GpuKernelBench kernels = BenchGpuKernels(context, *progress);
  const GpuModelBench decoders = BenchGpuModel(context, model.weights, kernels.limits, options.bench, *progress);
  const MainJobTimes job = BenchMainJob(context, model, options.job, *progress);
  Json json = {{"device", kernels.device.name},
               {"compute_capability", fmt::format("{}.{}", kernels.device.major, kernels.device.minor)},
               {"copy_bandwidth", kernels.limits.copy_bandwidth},
               {"matrix_peak", kernels.limits.matrix_peak},
               {"double_peak", kernels.limits.double_peak},
               {"prefill_tokens_per_second", decoders.prefill_tokens_per_second},
               {"prefill_floor", decoders.prefill_floor}};
  json["kernels"] = ReportKernels(kernels);
  json["variants"] = ReportVariants(options.bench, decoders);
  json["job"] = ReportMainJob(job);
  json["targets"] = ReportTargets(Targets(kernels, decoders, job));
  options.common.WriteJson(json);
  return 0;
}

}  // namespace shiftrt
