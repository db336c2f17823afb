// SPDX-License-Identifier: Apache-2.0
#include "bench/calibration_bench.h"

#include <algorithm>

#include "runtime/random.h"
#include "runtime/stopwatch.h"
#include "shift/pipeline.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

// Every eighth batch, counted from the end, is held out if `holds_out`.
CalibrationSet RandomText(const ModelConfig& config, int64_t batches, int64_t samples, int64_t tokens, bool holds_out) {
  Random random(1);
  CalibrationSet set;
  for (int64_t b = batches; b > 0; --b) {
    Batch& batch = (holds_out && b % 8 == 0 ? set.heldout : set.fit).emplace_back();
    for (int64_t s = 0; s < samples; ++s) {
      std::vector<int32_t> sample(std::min(tokens, config.max_positions));
      for (int32_t& token : sample) token = static_cast<int32_t>(random.Below(config.vocab));
      batch.Add(sample);
    }
  }
  return set;
}

}  // namespace

CalibrationBenchResult BenchCalibration(const Context& context, const Model& model,
                                        const CalibrationBenchOptions& options, Progress& progress) {
  const ModelConfig& config = model.weights->config;
  constexpr int64_t kSamplesABatch = 4;
  const CalibrationSet text = RandomText(config, options.batches, kSamplesABatch, options.tokens, /*holds_out=*/false);
  Decoder decoder(context, model.weights, DepthPlan::Original(config.layers));
  // Warm-up: the first pass loads the pages of weights and scratch. A GPU has finished it when a row has been copied.
  decoder.Forward(text.fit[0]).Slice(0, 1).ToHost();
  CalibrationBenchResult result;
  for (int64_t layer = config.layers - 1; layer >= 0; layer -= options.every)
    result.layers.insert(result.layers.begin(), layer);
  NoProgress quiet;
  progress.Begin("timing", options.rounds);
  for (int64_t round = 0; round < options.rounds; ++round) {
    double plain = 0, tapped = 0;
    {
      const Stopwatch watch(plain);
      Rows last;
      for (const Batch& batch : text.fit) last = decoder.Forward(batch);
      last.Slice(0, 1).ToHost();  // waits for a GPU
    }
    {
      const Stopwatch watch(tapped);
      CalibrationSums sums = CalibrationSums::Empty(WholeBlocks(result.layers), config.hidden);
      Collect({context, model, text, quiet}, sums);
    }
    result.forward.rounds.push_back(plain);
    result.collect.rounds.push_back(tapped);
    result.ratio.rounds.push_back(tapped / plain);
    progress.Advance(1);
  }
  progress.End();
  return result;
}

MainJobTimes BenchMainJob(const Context& context, const Model& model, const MainJobOptions& options,
                          Progress& progress) {
  const ModelConfig& config = model.weights->config;
  const int64_t each = std::max<int64_t>(1, CalibrationBatchTokens(context.device) / options.tokens),
                batches = (options.samples + each - 1) / each;
  const CalibrationSet text = RandomText(config, batches, each, options.tokens, /*holds_out=*/true);
  Decoder(context, model.weights, DepthPlan::Original(config.layers)).Forward(text.fit[0]);  // loads the weights
  const Recipe recipe = {.prune = ParsePrune("bi:0.25"),
                         .rank = RankSpec::Fixed(std::min<int64_t>(64, config.hidden)),
                         .mode = Calibration::kIndependent};
  MainJobTimes times;
  ShiftResult result;
  {
    const Stopwatch watch(times.total);
    result = Shift({context, model, text, progress}, recipe);
  }
  times.sites = std::ssize(result.sites);
  times.samples = batches * each;
  times.tokens = text.fit[0].offsets[1];
  times.select = result.seconds.select;
  times.calibrate = result.seconds.calibrate;
  times.solve = result.seconds.solve;
  times.factorize = result.seconds.factorize;
  return times;
}

}  // namespace shiftrt
