// What calibration costs, on random text: collecting accumulators beside the plain forward pass over the same tokens;
// the whole main job.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace shiftrt {

struct CalibrationBenchOptions {
  int64_t tokens = 512;  // a sample; four a batch
  int64_t batches = 4;   // a round
  int64_t rounds = 5;    // of forward and collection in turn
  int64_t every = 4;     // one layer in so many is tapped, the last one among them
};

// Medians over the rounds; ratio: of the rounds' own ratios.
struct CalibrationBenchResult {
  std::vector<int64_t> layers;
  double forward_seconds = 0, collect_seconds = 0, ratio = 0;
};
CalibrationBenchResult BenchCalibration(const Context& context, const Model& model,
                                        const CalibrationBenchOptions& options, Progress& progress);

// Block influence, a quarter of the blocks removed, an adapter of rank 64 (the hidden size at most) in the place of
// each; on any device. An eighth of the samples is held out.
struct MainJobOptions {
  int64_t samples = 256, tokens = 512;
};
struct MainJobTimes {
  int64_t sites = 0, samples = 0, tokens = 0;  // tokens of a sample, which the model's context may cut
  double select = 0, calibrate = 0, solve = 0, factorize = 0, total = 0;  // seconds, weights being where they are used
};
MainJobTimes BenchMainJob(const Context& context, const Model& model, const MainJobOptions& options,
                          Progress& progress);

}  // namespace shiftrt
