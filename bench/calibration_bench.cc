#include "bench/calibration_bench.h"

#include <algorithm>

#include "runtime/random.h"
#include "runtime/stopwatch.h"
#include "shift/collect.h"

namespace shiftrt {

namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

CalibrationSet RandomText(const ModelConfig& config, const CalibrationBenchOptions& options) {
  constexpr int64_t kSamplesABatch = 4;
  Random random(1);
  CalibrationSet set;
  for (int64_t b = 0; b < options.batches; ++b) {
    Batch& batch = set.fit.emplace_back();
    for (int64_t s = 0; s < kSamplesABatch; ++s) {
      std::vector<int32_t> tokens(std::min(options.tokens, config.max_positions));
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(config.vocab));
      batch.Add(tokens);
    }
  }
  return set;
}

}  // namespace

CalibrationBenchResult BenchCalibration(const Context& context, const Model& model,
                                        const CalibrationBenchOptions& options, Progress& progress) {
  const ModelConfig& config = model.weights->config;
  const CalibrationSet text = RandomText(config, options);
  Decoder decoder(context, model.weights, DepthPlan::Original(config.layers));
  decoder.Forward(text.fit[0]);  // the first pass pays for the pages of weights and scratch
  CalibrationBenchResult result;
  for (int64_t layer = config.layers - 1; layer >= 0; layer -= options.every)
    result.layers.insert(result.layers.begin(), layer);
  std::vector<double> forward, collect, ratio;
  NoProgress quiet;
  progress.Begin("timing", options.rounds);
  for (int64_t round = 0; round < options.rounds; ++round) {
    double plain = 0, tapped = 0;
    {
      const Stopwatch watch(plain);
      for (const Batch& batch : text.fit) decoder.Forward(batch);
    }
    {
      const Stopwatch watch(tapped);
      CollectedSums sums = CollectedSums::Empty(result.layers, config.hidden);
      Collect(context, model, text, sums, quiet);
    }
    forward.push_back(plain);
    collect.push_back(tapped);
    ratio.push_back(tapped / plain);
    progress.Advance(1);
  }
  progress.End();
  result.forward_seconds = Median(forward);
  result.collect_seconds = Median(collect);
  result.ratio = Median(ratio);
  return result;
}

}  // namespace shiftrt
