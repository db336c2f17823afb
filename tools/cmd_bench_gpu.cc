// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/gpu_targets.h"
#include "runtime/check.h"
#include "tools/bench_options.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

Json ReportDevice(const gpu::DeviceInfo& device) {
  return {{"device", device.name}, {"compute_capability", fmt::format("{}.{}", device.major, device.minor)}};
}

Json ReportLimits(const GpuLimits& limits) {
  fmt::print("copies at {:.0f} GB/s, products at {:.0f} (bfloat16) and {:.1f} (float64) TFLOP/s\n",
             limits.copy_bandwidth / 1e9, limits.matrix_peak / 1e12, limits.double_peak / 1e12);
  return {{"copy_bandwidth", limits.copy_bandwidth},
          {"matrix_peak", limits.matrix_peak},
          {"double_peak", limits.double_peak}};
}

Json ReportKernels(const std::vector<GpuKernelTime>& kernels) {
  Json json = Json::array();
  for (const GpuKernelTime& time : kernels) {
    fmt::print("{:23} {:37} {:9.1f} us ({:8.1f} launched alone), floor {:8.1f} us, {:3.0f}% of the limit\n", time.room,
               time.name, time.seconds * 1e6, time.seconds_launched_alone * 1e6, time.floor * 1e6,
               100 * time.floor / time.seconds);
    json.push_back({{"room", time.room},
                    {"name", time.name},
                    {"seconds", time.seconds},
                    {"seconds_launched_alone", time.seconds_launched_alone},
                    {"bytes", time.bytes},
                    {"flops", time.flops},
                    {"floor", time.floor}});
  }
  return json;
}

Json ReportModel(const ModelBenchOptions& options, const GpuModelBench& model) {
  Json variants = Json::array();
  for (const GpuVariantTime& variant : model.variants) {
    fmt::print("decode at {}, {:24} {:8.1f} tokens/s, floor {:8.1f}, {:.3f} J per token\n", options.context,
               variant.name, variant.decode_tokens_per_second, variant.decode_floor, variant.joules_per_token);
    variants.push_back({{"name", variant.name},
                        {"decode_tokens_per_second", variant.decode_tokens_per_second},
                        {"decode_floor", variant.decode_floor},
                        {"joules_per_token", variant.joules_per_token}});
  }
  Json together = Json::array();
  for (const GpuTogetherTime& of : model.together) {
    fmt::print("{:2} sequences together at {} {:13} {:8.1f} tokens/s, floor {:8.1f}\n", of.sequences, options.context,
               "", of.tokens_per_second, of.floor);
    together.push_back({{"sequences", of.sequences}, {"tokens_per_second", of.tokens_per_second}, {"floor", of.floor}});
  }
  fmt::print("prefill of {}: {:.0f} tokens/s, floor {:.0f}\n", options.prefill, model.prefill_tokens_per_second,
             model.prefill_floor);
  return {{"prefill_tokens_per_second", model.prefill_tokens_per_second},
          {"prefill_floor", model.prefill_floor},
          {"variants", std::move(variants)},
          {"together", std::move(together)}};
}

Json ReportTargets(const std::vector<MeasuredTarget>& targets) {
  Json json = Json::array();
  for (const auto& [target, found] : targets) {
    fmt::print("{:38} {:8.3f}   wanted {}, expected {}\n", target->what, found, target->wanted, target->expected);
    json.push_back(
        {{"what", target->what}, {"found", found}, {"wanted", target->wanted}, {"expected", target->expected}});
  }
  return json;
}

// The result so far. It is written after every stage, and a stage that fails leaves its error in it: what was measured
// is kept whatever happens later.
class Stages {
 public:
  Stages(const CommonOptions& options, Json json) : options_(options), json_(std::move(json)) {
    json_["failed"] = Json::object();
    json_["kernels"] = Json::array();
    options_.WriteJson(json_);
  }
  // `measure` adds its figures to the JSON object it is given. Interrupted and bad_alloc end the whole bench.
  void Run(const std::string& name, const std::function<void(Json&)>& measure) {
    try {
      measure(json_);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      fmt::print("{} FAILED: {}\n", name, error.what());
      json_["failed"][name] = error.what();
    }
    options_.WriteJson(json_);
    std::fflush(stdout);
  }
  bool all_passed() const { return json_["failed"].empty(); }

 private:
  const CommonOptions& options_;
  Json json_;
};

}  // namespace

int BenchGpu(const BenchOptions& options) {
  if (!gpu::WhyUnavailable().empty()) FailUsage("bench gpu: {}", gpu::WhyUnavailable());
  const Context context = options.common.MakeContext();
  if (context.device != Device::kCuda) FailUsage("bench gpu with --device cpu");
  const auto progress = options.common.MakeProgress();
  const gpu::DeviceInfo device = gpu::QueryDevice(context.gpus.front());
  fmt::print("{}, compute capability {}.{}\n", device.name, device.major, device.minor);
  Stages stages(options.common, ReportDevice(device));

  GpuLimits limits;
  stages.Run("limits", [&](Json& json) {
    limits = MeasureGpuLimits(context);
    json.update(ReportLimits(limits));
  });
  Model model;
  GpuKernelShape shape;
  if (!options.kernels_only) {
    stages.Run("weights", [&](Json&) { model.weights = OpenWeights(options); });
    if (model.weights != nullptr) shape = GpuKernelShape(model.weights->config);
  } else if (!options.config.empty()) {
    shape = GpuKernelShape(LoadConfig(options.config));
  }
  std::vector<GpuKernelTime> kernels;
  for (const GpuKernelGroup& group : GpuKernelGroups())
    stages.Run(group.name, [&](Json& json) {
      const std::vector<GpuKernelTime> times = BenchGpuKernels(context, limits, shape, group, *progress);
      for (Json& time : ReportKernels(times)) json["kernels"].push_back(std::move(time));
      kernels.insert(kernels.end(), times.begin(), times.end());
    });
  std::optional<GpuModelBench> decoders;
  std::optional<MainJobTimes> job;
  if (model.weights != nullptr) {
    stages.Run("decoders", [&](Json& json) {
      decoders = BenchGpuModel(context, model.weights, limits, options.bench, *progress);
      json.update(ReportModel(options.bench, *decoders));
    });
    stages.Run("main job", [&](Json& json) {
      job = BenchMainJob(context, model, options.job, *progress);
      json["job"] = ReportMainJob(*job);
    });
  }
  stages.Run("targets", [&](Json& json) {
    json["targets"] = ReportTargets(MeasuredTargets(kernels, decoders, job));
    json["launch_graph_refused"] = gpu::WhyLaunchGraphRefused();
  });
  return stages.all_passed() ? 0 : 1;
}

}  // namespace shiftrt
