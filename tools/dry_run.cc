// SPDX-License-Identifier: Apache-2.0
#include "tools/dry_run.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "api/repair.h"
#include "bench/rates.h"
#include "estimate/main_job.h"
#include "eval/perplexity.h"
#include "models/adapted.h"
#include "models/hf_lra.h"
#include "models/model.h"
#include "models/shapes.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/host_memory.h"
#include "runtime/words.h"
#include "shiftrt/finetune.h"
#include "shiftrt/repair.h"
#include "tools/comparison.h"
#include "tools/options.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// Tokens of WikiText-2's test text with the tokenizer of Llama 2: what is assumed of a text that is not read.
constexpr int64_t kTextTokens = 341469;

ModelShapes OpenShapes(const DryRun& run) {
  const WeightType dtype = run.common.Loading().dtype;
  if (!run.options.config.empty()) return ShapesOfConfig(run.options.config, dtype);
  const std::filesystem::path model = ResolveModel(run.common.model);
  if (std::filesystem::exists(model / kAdaptedFile) || IsHfLra(model))
    FailUsage(
        "--dry-run plans the repair of an original model, and {} is already pruned or fine-tuned: give the model "
        "it was made from, whose repair takes at least as long",
        run.common.model);
  return ShapesOfModel(model, dtype);
}

// Bytes that the process may use of its GPU, or of its host if it uses none.
int64_t FreeMemory(const Context& context) {
  return context.device == Device::kCuda ? gpu::QueryDevice(context.gpus.front()).free_bytes : AvailableMemory();
}

MainJob JobOf(const DryRun& run, const std::shared_ptr<const Weights>& weights, const Context& context) {
  const ModelConfig& config = weights->config;
  MainJob job;
  job.weights = weights;
  job.split = std::max(1, run.common.split);
  job.recipe = WithCorrection(run.recipe, config, job.split > 1);
  // Without --calib it is as many samples of another text.
  job.calibration = ParseCalibration(run.calib.empty() ? "calibration" : run.calib);
  job.window = ProtocolWindow(run.comparison.measured.protocol, config);
  job.text_tokens = std::max(run.comparison.text_tokens > 0 ? run.comparison.text_tokens : kTextTokens, job.window);
  job.variants = std::ssize(VariantNames(run.recipe));
  // No token is shorter than a byte, but for the one that may begin the text.
  job.positions = std::ssize(run.comparison.measured.prompt) + 1 + run.comparison.measured.max_tokens;
  job.decoded = DecodedTokens(run.comparison.measured);
  job.machine = PassMachine::Of(context, *weights);
  job.device_memory = FreeMemory(context);
  if (context.memory == 0 && context.device == Device::kCpu) {  // what the weights leave
    const ModelShare share = CutModel(config, DepthPlan::Original(config.layers), job.split).front();
    const int64_t held = WeightBytes(*weights, DepthPlan::Original(config.layers), share);
    job.machine.memory = std::min(job.machine.memory, std::max<int64_t>(0, (job.device_memory - held) / 4 * 3));
  }
  if (!run.recover.empty()) {
    const TrainingBudget budget = ParseTrainingBudget(run.recover);
    job.recover_seconds = budget.seconds;
    job.recover_tokens = budget.tokens;
    job.teacher = ParseTrainingLoss(run.recover_loss) != TrainingLoss::kCrossEntropy;
    ++job.variants;
  }
  return job;
}

JobPlan PlanFor(const DryRun& run, const MainJob& job) {
  JobPlan plan = PlanOf(job);
  plan.unplanned.insert(plan.unplanned.end(), run.besides.begin(), run.besides.end());
  return plan;
}

Rates MeasureHere(const Context& context, const Weights& weights) {
  return MeasureRates(context, weights.config, ExpandedType(weights.blocks.front().AnyDown().dtype));
}

// Seconds of a step on this machine: its work at the measured rates, and its budget.
double SecondsOf(const StepWork& step, const Rates& rates) {
  return std::max(step.products / rates.products + step.float64 / rates.float64, step.reads / rates.bandwidth) +
         step.seconds;
}

double SecondsOf(const JobPlan& plan, const Rates& rates) {
  double seconds = 0;
  for (const StepWork& step : plan.steps) seconds += SecondsOf(step, rates);
  return seconds;
}

std::string Bytes(int64_t bytes) { return Scaled(static_cast<double>(bytes), "B"); }

std::string Seconds(double seconds) {
  if (seconds < 600) return fmt::format("{:.3g} s", seconds);
  return seconds < 36000 ? fmt::format("{:.3g} min", seconds / 60) : fmt::format("{:.3g} h", seconds / 3600);
}

void PrintModel(const ModelShapes& shapes) {
  const Weights& weights = *shapes.weights;
  const DepthPlan plan = DepthPlan::Original(weights.config.layers);
  std::vector<std::string> stored;
  for (const auto& [type, bytes] : shapes.stored) stored.push_back(fmt::format("{} {}", Bytes(bytes), type));
  fmt::print("Plan from {}. Nothing was run, and no weight was read.\n\n", shapes.source);
  fmt::print("{}: {} layers, hidden {}, {} parameters ({}); {} in files; {} per token, {}\n", weights.config.family,
             weights.config.layers, weights.config.hidden, plan.Parameters(weights),
             Scaled(static_cast<double>(plan.Parameters(weights)), ""), fmt::join(stored, ", "),
             Bytes(plan.BytesPerToken(weights)), Name(weights.blocks.front().AnyDown().dtype));
}

void PrintPlan(const DryRun& run, const MainJob& job, const JobPlan& plan) {
  const int64_t all = job.weights->config.layers * (plan.halves ? 2 : 1);
  fmt::print("would remove {} of {} {}: {}\n", plan.units, all, plan.halves ? "half blocks" : "layers",
             plan.removed.empty() ? "those that " + job.recipe.prune.criterion + " chooses, by the text or the weights"
                                  : Names(plan.removed));
  if (plan.sites > 0)
    fmt::print("would fit {} in {}, {} parameters{}\n",
               Label(CorrectionOf(job.recipe), job.recipe.rank, job.recipe.span), Counted(plan.sites, "site"),
               plan.adapter_parameters, plan.removed.empty() ? ", at most" : "");
  if (plan.in_sequence()) fmt::print("would fit them in sequence (calibration mode {})\n", Name(plan.mode));
  const CalibrationCounts& counts = plan.calibration;
  if (!plan.loads || plan.selects)
    fmt::print(
        "calibration: {} samples x {} tokens if the text is as long: {} fitted in {} batches, {} held out in {}{}\n",
        counts.fit_samples + counts.heldout_samples, plan.fit.length, counts.fit_samples, counts.fit_batches,
        counts.heldout_samples, counts.heldout_batches,
        plan.passes == 1 ? "" : fmt::format("; {} passes, for which memory has room", plan.passes));
  fmt::print("evaluation: {} variants on {} windows of {} tokens ({}){}\n\n", job.variants, plan.windows.count,
             plan.windows.length, run.comparison.measured.protocol,
             run.comparison.text_tokens > 0
                 ? ""
                 : fmt::format(", for a text of {} tokens; --text-tokens gives another number", kTextTokens));
}

// A part of the memory, and the options that make it smaller.
struct Part {
  const char* name;
  int64_t bytes = 0;  // 0: the job does not need it
  const char* smaller = "";
};

std::vector<Part> Parts(const PlannedMemory& memory, int64_t split) {
  return {{"weights", memory.weights,
           split == 1 ? "--split N (docs/scale.md), or a smaller model" : "a larger --split, or a smaller model"},
          {"activations", memory.activations, "shorter samples (--calib TEXT:SAMPLESxTOKENS)"},
          {"streams", memory.streams, "fewer samples (--calib TEXT:SAMPLESxTOKENS)"},
          {"sums", memory.sums, "--memory SIZE, with which the text is read more often"},
          {"fit", memory.fit, "--correction lra without --heal, or a smaller model"},
          {"logits", memory.logits, "--protocol seq128"},
          {"cache", memory.cache, "a shorter --prompt"},
          {"adapters", memory.adapters, "a lower rank (--lra N)"},
          {"sums_on_host", memory.host_sums}};
}

// The steps with their FLOP, and where rates were measured their time.
void PrintSteps(const JobPlan& plan, const Rates* rates) {
  Table table({"step", "FLOP", "time"});
  double sum = 0;
  const auto add = [&](const char* name, double flops, double seconds) {
    table.Add({name, flops == 0 ? "" : fmt::format("{:.3e}", flops), seconds == 0 ? "" : Seconds(seconds)});
    sum += flops;
  };
  for (const StepWork& step : plan.steps)
    if (step.flops() > 0 || step.seconds > 0)
      add(step.name, step.flops(), rates == nullptr ? 0 : SecondsOf(step, *rates));
  add("total", sum, rates == nullptr ? 0 : SecondsOf(plan, *rates));
  table.DropEmptyColumns();
  fmt::print("{}{}\n", table.Text(),
             plan.unplanned.empty() ? "" : fmt::format("total without {}\n", fmt::join(plan.unplanned, "; ")));
}

void PrintMemory(const MainJob& job, const PlannedMemory& memory) {
  const std::vector<Part> parts = Parts(memory, job.split);
  std::vector<std::string> names;
  for (const Part& part : parts)
    if (part.bytes > 0) names.push_back(fmt::format("{} {}", part.name, Bytes(part.bytes)));
  fmt::print("memory{}: {} of {} that are free ({}; not all at the same time)\n",
             job.split == 1 ? "" : " of the process that needs the most", Bytes(memory.most()),
             Bytes(job.device_memory), fmt::join(names, ", "));
  if (memory.most() <= job.device_memory) return;
  const Part& largest =
      *std::max_element(parts.begin(), parts.end() - 1, [](const Part& a, const Part& b) { return a.bytes < b.bytes; });
  fmt::print("it does not fit; the largest part is \"{}\": try {}\n", largest.name, largest.smaller);
}

Json PlanJson(const ModelShapes& shapes, const MainJob& job, const JobPlan& plan, const Rates* rates) {
  const Weights& weights = *shapes.weights;
  const DepthPlan original = DepthPlan::Original(weights.config.layers);
  Json json = {{"model",
                {{"source", shapes.source},
                 {"layers", weights.config.layers},
                 {"parameters", original.Parameters(weights)},
                 {"dtype", Name(weights.blocks.front().AnyDown().dtype)},
                 {"bytes_in_files", shapes.stored},
                 {"bytes_per_token", original.BytesPerToken(weights)}}},
               {"job",
                {{"units", plan.units},
                 {"halves", plan.halves},
                 {"removed", Json()},
                 {"sites", plan.sites},
                 {"calibration_mode", Name(plan.mode)},
                 {"adapter_parameters", plan.adapter_parameters},
                 {"fit_tokens", plan.fit.tokens()},
                 {"heldout_tokens", plan.heldout.tokens()},
                 {"passes", plan.passes},
                 {"evaluated_tokens", plan.windows.tokens()},
                 {"variants", job.variants},
                 {"split", job.split},
                 {"not_planned", plan.unplanned}}},
               {"memory", {{"most", plan.memory.most()}, {"free", job.device_memory}}},
               {"fits", plan.memory.most() <= job.device_memory}};
  for (const BlockPart& part : plan.removed) json["job"]["removed"].push_back(Name(part));
  for (const Part& part : Parts(plan.memory, job.split)) json["memory"][part.name] = part.bytes;
  for (const StepWork& step : plan.steps) {
    json["steps"].push_back({{"step", step.name}, {"flops", step.flops()}, {"float64_flops", step.float64}});
    if (rates != nullptr) json["steps"].back()["seconds"] = SecondsOf(step, *rates);
  }
  if (rates == nullptr) return json;
  json["rates"] = {{"products", rates->products}, {"float64", rates->float64}, {"bandwidth", rates->bandwidth}};
  json["seconds"] = SecondsOf(plan, *rates);
  return json;
}

// Which smaller text would do, where most of the time goes into a long one. The time grows with the text.
std::string SmallerTexts(const DryRun& run, const MainJob& job, const JobPlan& plan, const Rates& here) {
  constexpr int64_t kEnough = 16384, kSamples = 64;  // tokens of a perplexity, samples of a calibration
  const double third = SecondsOf(plan, here) / 3, evaluating = SecondsOf(plan.Step("evaluate"), here);
  const double reading = SecondsOf(plan.Step("select"), here) + SecondsOf(plan.Step("calibrate"), here);
  const auto would = [](double seconds, int64_t part, int64_t whole) {
    return fmt::format("would take {} instead of {}\n",
                       Seconds(seconds * static_cast<double>(part) / static_cast<double>(whole)), Seconds(seconds));
  };
  std::string text;
  if (const int64_t fewer = std::max(kEnough, job.window); job.text_tokens > 2 * kEnough && evaluating > third)
    text += fmt::format("  perplexity is measured on {} tokens; --text-tokens {} {}", job.text_tokens, fewer,
                        would(evaluating, fewer, job.text_tokens));
  if (job.calibration.samples > 2 * kSamples && reading > third && run.recipe.gram.load.empty())
    text += fmt::format("  {} samples are read for the repair; {} (--calib TEXT:{}x{}) {}", job.calibration.samples,
                        kSamples, kSamples, job.calibration.tokens, would(reading, kSamples, job.calibration.samples));
  return text;
}

}  // namespace

void DryRunOptions::AddTo(CLI::App& app) {
  CLI::Option* const flag = app.add_flag(
      "--dry-run", wanted,
      "print what the command would do, its FLOP and memory, and the time that it would take on this machine's CPU,\n"
      "whose speed is measured for about a second; no weights and texts are read, and nothing is downloaded or\n"
      "written but --json (docs/scale.md)");
  app.add_option("--config", config, "with --dry-run: plan for the model of this config.json, without its weights")
      ->needs(flag)
      ->excludes(app.get_option("--model"))
      ->check(CLI::ExistingFile);
}

void PrintDryRun(const DryRun& run) {
  const ModelShapes shapes = OpenShapes(run);
  const Context context = run.common.MakeContext();
  const MainJob job = JobOf(run, shapes.weights, context);
  const JobPlan plan = PlanFor(run, job);
  // The rates are those of one process on the CPU.
  const bool timed = context.device == Device::kCpu && job.split == 1;
  const Rates here = timed ? MeasureHere(context, *shapes.weights) : Rates();
  const Rates* const rates = timed ? &here : nullptr;

  PrintModel(shapes);
  PrintPlan(run, job, plan);
  if (timed)
    fmt::print("on this machine ({} threads, {}; measured just now: {:.3g} TFLOP/s, {:.3g} in float64, {:.4g} GB/s)\n",
               context.threads, Name(context.isa), here.products / 1e12, here.float64 / 1e12, here.bandwidth / 1e9);
  PrintSteps(plan, rates);
  PrintMemory(job, plan.memory);
  run.common.WriteJson(PlanJson(shapes, job, plan, rates));
}

std::string TimeAhead(const DryRun& run, const LanguageModel& model, const RunTexts& texts) {
  const std::shared_ptr<const Weights>& weights = model.impl().model.weights;
  const Context context = run.common.MakeContext();
  if (context.device != Device::kCpu || !run.common.processes->alone()) return "";
  MainJob job = JobOf(run, weights, context);
  job.calibration.samples = std::max<int64_t>(1, texts.calibration / std::max<int64_t>(1, job.calibration.tokens));
  job.text_tokens = std::max(texts.heldout, job.window);
  const JobPlan plan = PlanFor(run, job);
  constexpr double kSlow = 20e9, kFast = 200e9, kShort = 30;  // FLOP/s of a thread, at least and at most; seconds
  const auto at = [&](double rate) { return SecondsOf(plan, {rate * context.threads, rate * context.threads, 1e12}); };
  if (at(kFast) < kShort && at(kSlow) < 4 * kShort) return "";
  const Rates here = MeasureHere(context, *weights);
  const double total = SecondsOf(plan, here);
  if (total < kShort) return "";
  std::vector<std::string> parts;
  for (const StepWork& step : plan.steps)
    if (const double seconds = SecondsOf(step, here); seconds >= total / 100)
      parts.push_back(fmt::format("{} {}", step.name, Seconds(seconds)));
  // How many runs the removed blocks form is known when they are chosen, and a run is one fit.
  const bool most = plan.sequential && plan.removed.empty();
  std::string text = fmt::format(
      "expected to take {} {}, at the speed of this machine: {} threads, {} (measured just now): {}\n",
      most ? "at most" : "about", Seconds(total), context.threads, Name(context.isa), fmt::join(parts, ", "));
  if (!plan.unplanned.empty()) text += fmt::format("  without {}\n", fmt::join(plan.unplanned, "; "));
  return text + SmallerTexts(run, job, plan, here);
}

}  // namespace shiftrt
