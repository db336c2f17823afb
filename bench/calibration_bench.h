// What collecting accumulators costs beside the plain forward pass over the same tokens.
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

}  // namespace shiftrt
