// SPDX-License-Identifier: Apache-2.0
#include "train/finetune.h"

#include <utility>

#include "runtime/check.h"
#include "runtime/host_memory.h"

namespace shiftrt {

namespace {

// The plan that the job's model begins with, and what is trained of it.
struct Beginning {
  DepthPlan plan;
  std::vector<ReplacedRun> runs;  // of a replacement
  TrainableOptions trainable;
};

Beginning BeginningOf(const FinetuneJob& job) {
  const FinetuneOptions& options = job.options;
  if (options.trainable.method != Method::kReplacement) return {job.model.plan, {}, options.trainable};
  ReplacementPlan replaced = WithReplacements(*job.model.weights, job.model.plan, options.replacement);
  Beginning beginning{std::move(replaced.plan), std::move(replaced.runs), options.trainable};
  if (options.trainable.head || options.trainable.adapters)
    FailUsage(Field("method"), "replacement trains the new blocks alone, neither head nor adapters");
  beginning.trainable.layers.clear();
  for (const ReplacedRun& run : beginning.runs)
    beginning.trainable.layers += fmt::format("{}{}", beginning.trainable.layers.empty() ? "" : ",", run.first);
  return beginning;
}

// The original model as a teacher. A directory with weights of its own has only the blocks that its plan runs.
DepthPlan TeacherPlan(const Model& model) {
  const int64_t layers = model.weights->config.layers;
  if (!model.removed.empty() && model.plan.RemovedLayers(layers).empty())
    FailUsage(Field("loss"),
              "the original model is the teacher, but {} was saved with its weights and lacks the removed layers; save "
              "it without, so that it refers to the original",
              model.name);
  return DepthPlan::Original(layers);
}

}  // namespace

Context TrainingContext(Context context) {
  if (context.products == Products::kAuto && context.device == Device::kCpu)
    context.products = HasRoundedProducts(context.isa) ? Products::kBFloat16 : Products::kFloat32;
  return context;
}

TrainingSettings SettingsOf(const FinetuneJob& job) {
  const auto& [trainable, training, loss, replacement] = job.options;
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  TrainingSettings settings = {
      {"model", job.model.weights->Fingerprint()},
      {"plan", job.model.plan.Fingerprint()},
      {"text", job.texts.hash},
      {"method", Name(trainable.method)},
      {"adapters", trainable.adapters ? "trainable" : "frozen"},
      {"head", text(trainable.head)},
      {"loss", loss.Name()},
      {"rate", text(training.schedule.rate)},
      {"schedule", Name(training.schedule.decay)},
      {"warmup", training.seconds > 0 ? text(training.warmup_share) : text(training.schedule.warmup)},
      {"steps", training.seconds > 0 ? "" : text(training.schedule.steps)},
      {"weight_decay", text(training.weight_decay)},
      {"betas", fmt::format("{}, {}, {}", training.beta1, training.beta2, training.epsilon)},
      {"clip", text(training.clip)},
      {"batch", text(training.batch)},
      {"pass_tokens", text(training.pass_tokens)},
      {"validate_every", text(training.validate_every)},
      {"seed", text(training.seed)}};
  if (training.seconds > 0) settings.emplace_back("seconds", text(training.seconds));
  if (training.keep_best) settings.emplace_back("keep_best", "yes");
  if (job.context.products == Products::kBFloat16) settings.emplace_back("products", Name(job.context.products));
  switch (trainable.method) {
    case Method::kLora:
      settings.emplace_back("lora.targets", fmt::format("{}", fmt::join(trainable.lora.targets, ",")));
      settings.emplace_back("lora.rank", text(trainable.lora.rank));
      settings.emplace_back("lora.alpha", text(trainable.lora.alpha));
      settings.emplace_back("lora.dropout", text(trainable.lora.dropout));
      settings.emplace_back("lora.seed", text(trainable.seed));
      break;
    case Method::kPartial: settings.emplace_back("layers", trainable.layers); break;
    case Method::kReplacement:
      settings.emplace_back("replacement", Name(replacement.halves));
      settings.emplace_back("keep_correction", replacement.keeps_correction ? "yes" : "no");
      break;
    case Method::kAdapters: break;
  }
  return settings;
}

TrainingResult Finetune(const FinetuneJob& job) {
  const FinetuneOptions& options = job.options;
  const Beginning beginning = BeginningOf(job);
  const std::shared_ptr<const Weights>& weights = job.model.weights;
  const Parameters parameters(*weights, beginning.plan, beginning.trainable);
  if (job.announce) job.announce(parameters.Summary(*weights, beginning.plan));

  GradientEngine engine(job.context, weights, beginning.plan);
  // context.memory is of the host.
  if (job.context.device == Device::kCpu) engine.KeepActivations(UsableMemory(job.context));
  TrainingArrays arrays(engine.ops(), parameters.Initial(*weights, beginning.plan));
  const TrainedParameters views = parameters.Views(beginning.plan, arrays.values, arrays.gradients);
  TrainingResult result;
  std::unique_ptr<Objective> objective;
  if (options.trainable.method == Method::kReplacement) {
    engine.Set(views);
    objective = std::make_unique<ReplacementObjective>(job.context, weights, engine, beginning.runs);
  } else {
    const DepthPlan teacher = options.loss.divergence > 0 ? TeacherPlan(job.model) : DepthPlan();
    auto language = std::make_unique<LanguageObjective>(job.context, weights, engine, views, options.loss, teacher);
    result.shared_blocks = language->shared_blocks();
    objective = std::move(language);
  }

  const CheckpointFile checkpoint(job.checkpoint, SettingsOf(job));
  result.history =
      Train({job.texts, parameters, options.training, checkpoint, job.observer, job.context}, *objective, arrays);
  arrays.KeepValuesOnly();
  std::vector<float> copy;
  const std::span<const float> values = arrays.OnHost(arrays.values, copy);
  result.plan = parameters.Tuned(*weights, beginning.plan, values);
  result.lora = parameters.Factors(beginning.plan, values);
  result.parameters = parameters.count();
  result.peak_bytes = engine.PeakBytes();
  result.kept_blocks = engine.KeptBlocks();
  return result;
}

}  // namespace shiftrt
