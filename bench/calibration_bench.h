// SPDX-License-Identifier: Apache-2.0
// The cost of calibration on random text: collecting sums compared with the plain forward pass over the same tokens;
// and the whole workload from selection to fit.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/record.h"
#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace shiftrt {

struct CalibrationBenchOptions {
  int64_t tokens = 512;  // per sample; four samples per batch
  int64_t batches = 4;   // per round
  int64_t rounds = 5;    // each runs the forward pass and the collection
  int64_t every = 4;     // one layer in this many is tapped, the last layer among them
};

struct CalibrationBenchResult {
  std::vector<int64_t> layers;
  BenchFigure forward{"forward_seconds", BenchFigure::Better::kLower};
  BenchFigure collect{"collect_seconds", BenchFigure::Better::kLower};
  BenchFigure ratio{"ratio", BenchFigure::Better::kLower};  // ratio of the second to the first, per round
};
CalibrationBenchResult BenchCalibration(const Context& context, const Model& model,
                                        const CalibrationBenchOptions& options, Progress& progress);

// Computes block influence, removes a quarter of the blocks and fits an adapter of rank 64 (at most the hidden size) in
// place of each; on any device. An eighth of the samples is held out.
struct MainJobOptions {
  int64_t samples = 256, tokens = 512;
};
struct MainJobTimes {
  int64_t sites = 0, samples = 0, tokens = 0;  // tokens per sample, at most the model's context
  double select = 0, calibrate = 0, solve = 0, factorize = 0, total = 0;  // seconds, not counting the upload of weights
};
MainJobTimes BenchMainJob(const Context& context, const Model& model, const MainJobOptions& options,
                          Progress& progress);

}  // namespace shiftrt
