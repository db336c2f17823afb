// SPDX-License-Identifier: Apache-2.0
#include "train/finetune.h"

#include <utility>

#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "train/narrow_mlp.h"
#include "types/training.h"

namespace shiftrt {

namespace {

// The plan that the job's model begins with, and what is trained of it.
struct Beginning {
  DepthPlan plan;
  std::vector<ReplacedRun> runs;  // the replaced runs of Method::kReplacement
  FinetuneSettings settings;      // for Method::kReplacement, `layers` names the new blocks
};

Beginning BeginningOf(const Model& model, const FinetuneSettings& given) {
  Beginning beginning{model.plan, {}, given};
  FinetuneSettings& settings = beginning.settings;
  if (settings.method != Method::kReplacement) return beginning;
  ReplacementPlan replaced =
      WithReplacements(*model.weights, model.plan, settings.replacement, settings.keep_correction);
  if (settings.head || settings.adapters)
    FailUsage(Field("method"), "replacement trains the new blocks alone, neither head nor adapters");
  settings.layers.clear();
  for (const ReplacedRun& run : replaced.runs)
    settings.layers += fmt::format("{}{}", settings.layers.empty() ? "" : ",", run.first);
  beginning.plan = std::move(replaced.plan);
  beginning.runs = std::move(replaced.runs);
  return beginning;
}

}  // namespace

// A directory with weights of its own has only the blocks that its plan runs.
DepthPlan OriginalPlan(const Model& model, const char* field) {
  const int64_t layers = model.weights->config.layers;
  if (!model.removed.empty() && model.plan.RemovedLayers(layers).empty())
    FailUsage(Field(field),
              "it takes the original model, but {} was saved with its weights and lacks the removed layers; save it "
              "without, so that it refers to the original",
              model.name);
  return DepthPlan::Original(layers);
}

TrainingSettings SettingsOf(const FinetuneJob& job) {
  const Schedule& schedule = job.schedule;
  FinetuneSettings used = job.settings;
  const bool timed = used.budget.seconds > 0;
  used.rate = schedule.rate;
  used.decay = schedule.decay;
  if (!timed) used.warmup = static_cast<double>(schedule.warmup);
  const AdamW adamw;
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  TrainingSettings settings = {{"model", job.model.weights->Fingerprint()},
                               {"plan", job.model.plan.Fingerprint()},
                               {"text", job.texts.hash},
                               {"steps", timed ? "" : text(schedule.steps)},
                               {"betas", fmt::format("{}, {}, {}", adamw.beta1, adamw.beta2, adamw.epsilon)}};
  const TrainingSettings recorded = RecordedSettings(used);
  settings.insert(settings.end(), recorded.begin(), recorded.end());
  if (used.adapters && schedule.adapters != 1)
    settings.emplace_back("rate.adapters", text(schedule.rate * schedule.adapters));
  if (used.head && schedule.head != 1) settings.emplace_back("rate.head", text(schedule.rate * schedule.head));
  if (timed) settings.emplace_back("seconds", text(used.budget.seconds));
  if (used.method == Method::kLora) settings.emplace_back("lora.seed", text(used.seed));
  if (job.context.products == Products::kBFloat16) settings.emplace_back("products", Name(job.context.products));
  // The fingerprint is that of the stored tensors.
  if (!job.model.weights->stored.empty()) settings.emplace_back("dtype", Name(job.model.weights->embedding.dtype));
  return settings;
}

void CheckTrained(const Model& model, const FinetuneSettings& settings) {
  const Beginning beginning = BeginningOf(model, settings);
  [[maybe_unused]] const Parameters throws_if_unfit(*model.weights, beginning.plan, beginning.settings);
  if (settings.method != Method::kReplacement && settings.loss != TrainingLoss::kCrossEntropy)
    OriginalPlan(model, "loss");
}

TrainingResult Finetune(const FinetuneJob& job) {
  Beginning beginning = BeginningOf(job.model, job.settings);
  const std::shared_ptr<const Weights>& weights = job.model.weights;
  if (job.settings.method == Method::kReplacement && job.settings.replacement.units > 0)
    beginning.plan = WithChosenUnits(job.context, weights, {beginning.plan, beginning.runs}, job.texts.training,
                                     job.settings, job.poll);
  const Parameters parameters(*weights, beginning.plan, beginning.settings);
  if (job.announce) job.announce(parameters.Summary(*weights, beginning.plan));

  GradientEngine engine(job.context, weights, beginning.plan);
  // context.memory is of the host.
  if (job.context.device == Device::kCpu) engine.KeepActivations(UsableMemory(job.context));
  TrainingArrays arrays(engine.ops(), parameters.Initial(*weights, beginning.plan));
  const TrainedParameters views = parameters.Views(beginning.plan, arrays.values, arrays.gradients);
  TrainingResult result;
  std::unique_ptr<Objective> objective;
  if (job.settings.method == Method::kReplacement) {
    engine.Set(views);
    objective = std::make_unique<ReplacementObjective>(job.context, weights, engine, beginning.runs);
  } else {
    const DepthPlan teacher =
        job.settings.loss == TrainingLoss::kCrossEntropy ? DepthPlan() : OriginalPlan(job.model, "loss");
    auto language =
        std::make_unique<LanguageObjective>(job.context, weights, engine, views, job.settings.loss, teacher);
    result.shared_blocks = language->shared_blocks();
    objective = std::move(language);
  }

  const CheckpointFile checkpoint(job.settings.checkpoint, SettingsOf(job));
  result.history = Train(
      {job.texts, parameters, job.settings, job.schedule, checkpoint, job.observer, job.context, job.warn, job.poll},
      *objective, arrays);
  arrays.KeepValuesOnly();
  std::vector<float> copy;
  const std::span<const float> values = arrays.OnHost(arrays.values, copy);
  result.plan = parameters.Tuned(*weights, beginning.plan, values);
  result.rounding = parameters.RoundingError(*weights, beginning.plan, values, result.plan);
  result.lora = parameters.Factors(beginning.plan, values);
  result.parameters = parameters.count();
  result.peak_bytes = engine.PeakBytes();
  result.kept_blocks = engine.KeptBlocks();
  return result;
}

}  // namespace shiftrt
