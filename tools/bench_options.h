// SPDX-License-Identifier: Apache-2.0
// What the forms of `shiftrt bench` share.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/calibration_bench.h"
#include "bench/model_bench.h"
#include "bench/train_bench.h"
#include "tools/options.h"

namespace shiftrt {

struct BenchOptions {
  CommonOptions common;
  std::string what = "cpu", config, save, compare;
  bool kernels_only = false;  // set by `bench gpu`
  ModelBenchOptions bench;
  MainJobOptions job;
  CalibrationBenchOptions calibration;
  TrainBenchOptions train;
};

// Opens the weights of --model, or makes and maps random ones for --config.
std::shared_ptr<const Weights> OpenWeights(const BenchOptions& options);
// Prints the main job's times, and gives them for the JSON file.
nlohmann::json ReportMainJob(const MainJobTimes& times);
// `shiftrt bench gpu`. Throws UsageError in a build without the CUDA backend.
int BenchGpu(const BenchOptions& options);

}  // namespace shiftrt
