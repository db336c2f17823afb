// SPDX-License-Identifier: Apache-2.0
#include "bench/train_bench.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#ifdef SHIFTRT_HAVE_CUDA
#include "bench/gpu_bench.h"
#endif
#include "bench/probe.h"
#include "estimate/flops.h"
#include "runtime/check.h"
#include "runtime/random.h"
#include "train/finetune.h"
#include "train/parameters.h"

namespace shiftrt {

namespace {

int64_t PeakResidentBytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;  // Linux counts KiB
}

// The rate of products with such weights on the device that trains, in FLOP per second.
double ProductPeak(const Context& context, DType weights) {
#ifdef SHIFTRT_HAVE_CUDA
  if (context.device == Device::kCuda) return MeasureGpuProductPeak(context, weights);
#endif
  return MeasureProductPeak(context, weights);
}

// The layers whose own weights are trained, in ascending order; none with LoRA.
std::vector<int64_t> TrainedLayers(const ModelConfig& config, const TrainBenchOptions& options) {
  if (!options.all && options.layers.empty()) return {};
  return ChooseLayers(options.all ? "all" : options.layers, DepthPlan::Original(config.layers).KeptLayers());
}

}  // namespace

double TrainStepFlops(const Weights& weights, const TrainBenchOptions& options, int64_t parameters,
                      int64_t kept_blocks) {
  const ModelConfig& config = weights.config;
  const std::vector<int64_t> trained = TrainedLayers(config, options);
  const double layers = static_cast<double>(config.layers);
  // The shares of the blocks that run backwards, that run forwards again for it, and whose own weights are trained.
  const int64_t passed_back = config.layers - (trained.empty() ? 0 : trained.front());
  const double backwards = static_cast<double>(passed_back) / layers;
  const double again = static_cast<double>(passed_back - kept_blocks) / layers;
  const double weight_gradients = static_cast<double>(trained.size()) / layers;
  const double tokens = static_cast<double>(options.batch * options.length);
  const double products = (1 + backwards + again + weight_gradients) * BlockFlopsPerToken(weights);
  const double lora = trained.empty() ? (6 + 2 * again) * static_cast<double>(parameters) : 0;
  const double pairs = 2 * static_cast<double>(options.length * config.query_dim() * config.layers);
  const double head = 2 * static_cast<double>(config.hidden * config.vocab);
  const double teacher =
      options.loss == Name(TrainingLoss::kCrossEntropy) ? 0 : BlockFlopsPerToken(weights) + pairs + head;
  return tokens * (products + lora + (1 + 2.5 * backwards + again) * pairs + (options.all ? 3 : 2) * head + teacher);
}

TrainBenchResult BenchTrain(const Context& machine, std::shared_ptr<const Weights> weights,
                            const TrainBenchOptions& options, int64_t rounds, Progress& progress) {
  const Context context = machine.ReducedPrecision();
  const ModelConfig& config = weights->config;
  Check(options.length >= 2 && options.length <= config.max_positions,
        "sequences of {} tokens; the model's context is {}", options.length, config.max_positions);
  Model model;
  model.weights = weights;
  model.plan = DepthPlan::Original(config.layers);
  TrainingTexts texts;
  Random random(1);
  for (int64_t s = 0; s < options.batch; ++s) {
    std::vector<int32_t> tokens(options.length);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(config.vocab));
    texts.training.Add(tokens, 1);
  }
  FinetuneSettings settings;
  settings.loss = ParseTrainingLoss(options.loss);
  settings.lora.rank = options.rank;
  if (options.all || !options.layers.empty()) {
    settings.method = Method::kPartial;
    settings.layers = options.all ? "all" : options.layers;
    settings.head = options.all;
  }
  settings.batch = options.batch;
  settings.pass_tokens = options.pass_tokens;
  settings.checkpoint = std::filesystem::temp_directory_path() / fmt::format("shiftrt-bench-train-{}", ::getpid());
  const Schedule schedule = {.decay = Decay::kConstant, .rate = 1e-4, .steps = rounds + 1};

  TrainBenchResult result;
  result.products = context.products;
  double before = 0;
  progress.Begin("training", rounds + 1);
  const auto observer = [&](const TrainingHistory& history, int64_t) {
    if (history.steps() > 1) {
      result.seconds.rounds.push_back(history.seconds - before);
      result.product_peak.rounds.push_back(ProductPeak(context, weights->blocks.front().AnyDown().dtype));
    }
    before = history.seconds;
    progress.Advance(1);
  };
  const TrainingResult trained = Finetune({context, model, texts, settings, schedule, {}, observer});
  progress.End();
  std::filesystem::remove(settings.checkpoint);

  result.parameters = trained.parameters;
  result.engine_bytes = trained.peak_bytes;
  result.peak_resident_bytes = PeakResidentBytes();
  result.kept_blocks = trained.kept_blocks;
  result.flops = TrainStepFlops(*weights, options, trained.parameters, trained.kept_blocks);
  result.floor_seconds = result.flops / result.product_peak.median();
  result.tokens_per_second = static_cast<double>(options.batch * options.length) / result.seconds.median();
  return result;
}

}  // namespace shiftrt
