// SPDX-License-Identifier: Apache-2.0
#include "tools/dry_run.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "api/repair.h"
#include "bench/rates.h"
#include "estimate/devices.h"
#include "eval/perplexity.h"
#include "models/adapted.h"
#include "models/hf_lra.h"
#include "models/model.h"
#include "models/shapes.h"
#include "models/split.h"
#include "runtime/check.h"
#include "runtime/host_memory.h"
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
    FailUsage("{} is already pruned or fine-tuned; give the model it was made from", run.common.model);
  return ShapesOfModel(model, dtype);
}

// One device of the hardware; without a table's row, this machine's CPU.
PassMachine MachineOf(const DryRun& run, const Hardware* hardware, const Weights& weights) {
  const int64_t layers = weights.config.layers, held = WeightBytes(weights, DepthPlan::Original(layers), {0, layers});
  const auto room = [&](int64_t memory) { return std::max<int64_t>(0, (memory - held) / 4 * 3); };
  if (hardware == nullptr) {
    Context context = Context::Default();
    context.memory = static_cast<int64_t>(run.common.memory);
    PassMachine machine = PassMachine::Of(context, weights);
    if (context.memory == 0) machine.memory = std::min(machine.memory, room(AvailableMemory()));
    return machine;
  }
  PassMachine machine;
  machine.gpu = hardware->gpu;
  machine.float64_cost = PassMachine::Float64Cost(Isa::kAvx512, weights.blocks.front().AnyDown().dtype);
  machine.memory = static_cast<int64_t>(run.common.memory);
  if (machine.memory == 0) machine.memory = room(hardware->memory);
  return machine;
}

MainJob JobOf(const DryRun& run, const std::shared_ptr<const Weights>& weights, const PassMachine& machine) {
  const ModelConfig& config = weights->config;
  MainJob job;
  job.weights = weights;
  job.recipe = WithCorrection(run.recipe, config, run.common.split > 1);
  // Without --calib it is as many samples of another text.
  job.calibration = ParseCalibration(run.calib.empty() ? "calibration" : run.calib);
  job.window = ProtocolWindow(run.comparison.measured.protocol, config);
  job.text_tokens = std::max(run.comparison.text_tokens > 0 ? run.comparison.text_tokens : kTextTokens, job.window);
  job.variants = std::ssize(VariantNames(run.recipe));
  // No token is shorter than a byte, but for the one that may begin the text.
  job.positions = std::ssize(run.comparison.measured.prompt) + 1 + run.comparison.measured.max_tokens;
  job.decoded = DecodedTokens(run.comparison.measured);
  job.memory = static_cast<int64_t>(run.common.memory);
  job.machine = machine;
  if (!run.recover.empty()) {
    const TrainingBudget budget = ParseTrainingBudget(run.recover);
    job.recover_seconds = budget.seconds;
    job.recover_tokens = budget.tokens;
    job.teacher = ParseTrainingLoss(run.recover_loss) != TrainingLoss::kCrossEntropy;
    ++job.variants;
  }
  return job;
}

std::string Bytes(int64_t bytes) { return bytes == 0 ? "" : Scaled(static_cast<double>(bytes), "B"); }

std::string Seconds(double seconds) {
  if (seconds == 0) return "";
  if (seconds < 600) return fmt::format("{:.3g} s", seconds);
  return seconds < 36000 ? fmt::format("{:.3g} min", seconds / 60) : fmt::format("{:.3g} h", seconds / 3600);
}

void PrintModel(const ModelShapes& shapes) {
  const Weights& weights = *shapes.weights;
  const ModelConfig& config = weights.config;
  const DepthPlan plan = DepthPlan::Original(config.layers);
  fmt::print("Plan from {}. Nothing was run, and no weight was read.\n\n", shapes.source);
  fmt::print("model: {}, {} layers, hidden {}, MLP {}, {} heads of {}, {} of keys and values, vocabulary {}\n",
             config.family, config.layers, config.hidden, config.intermediate, config.heads, config.head_dim,
             config.kv_heads, config.vocab);
  std::vector<std::string> stored;
  for (const auto& [type, bytes] : shapes.stored) stored.push_back(fmt::format("{} {}", Bytes(bytes), type));
  fmt::print("{} parameters ({}); {} in files; {} per token, {}\n", plan.Parameters(weights),
             Scaled(static_cast<double>(plan.Parameters(weights)), ""), fmt::join(stored, ", "),
             Bytes(plan.BytesPerToken(weights)), Name(weights.blocks.front().AnyDown().dtype));
}

void PrintOutline(const DryRun& run, const MainJob& job, const JobOutline& outline) {
  const int64_t all = job.weights->config.layers * (outline.halves ? 2 : 1);
  fmt::print("would remove {} of {} {}: {}\n", outline.units, all, outline.halves ? "half blocks" : "layers",
             outline.removed.empty()
                 ? "those that " + job.recipe.prune.criterion + " chooses, by the text or the weights"
                 : Names(outline.removed));
  if (outline.sites > 0)
    fmt::print("would fit {} in {} site{}, {} parameters{}\n",
               Label(CorrectionOf(job.recipe), job.recipe.rank, job.recipe.span), outline.sites,
               outline.sites == 1 ? "" : "s", outline.adapter_parameters, outline.removed.empty() ? ", at most" : "");
  if (outline.in_sequence())
    fmt::print("would fit them in sequence (calibration mode {}){}\n", Name(outline.mode),
               ModeOf(job.recipe, true) == outline.mode ? "" : "; independently where the model is split");
  const CalibrationCounts& counts = outline.calibration;
  if (!outline.loads || outline.selects)
    fmt::print(
        "calibration: {} samples x {} tokens if the text is as long: {} fitted in {} batches, {} held out in {}\n",
        counts.fit_samples + counts.heldout_samples, outline.fit.length, counts.fit_samples, counts.fit_batches,
        counts.heldout_samples, counts.heldout_batches);
  if (outline.pass.candidates > 0)
    fmt::print("one device selects and collects the sums of all {} layers that may be removed in one pass\n",
               outline.pass.candidates);
  if (!outline.pass.depths.empty())
    fmt::print("one device keeps the streams before {}, so that calibration can begin at one of them\n",
               outline.pass.depths.size() > 4 ? fmt::format("{} of the layers", outline.pass.depths.size())
                                              : fmt::format("the layers {}", fmt::join(outline.pass.depths, " and ")));
  fmt::print("evaluation: {} variants on {} windows of {} tokens ({}){}\n\n", job.variants, outline.windows.count,
             outline.windows.length, run.comparison.measured.protocol,
             run.comparison.text_tokens > 0
                 ? ""
                 : fmt::format(", for a text of {} tokens; --text-tokens gives another number", kTextTokens));
}

void PrintFlops(const MainJob& job, const JobOutline& outline) {
  Table table({"step", "FLOP", "model", "float64 sums", "float64 fits"});
  StepFlops sum;
  const auto add = [&](const char* name, const StepFlops& flops) {
    const auto text = [](double value) { return value == 0 ? "" : fmt::format("{:.3e}", value); };
    table.Add({name, text(flops.all()), text(flops.model), text(flops.sums), text(flops.fits)});
  };
  for (const JobStep step : kSteps) {
    const StepFlops flops = FlopsOf(job, outline, step);
    add(Name(step), flops);
    sum = {sum.model + flops.model, sum.sums + flops.sums, sum.fits + flops.fits};
  }
  add("all", sum);
  fmt::print("{}\n", table.Text());
}

// "total", and what it lacks.
std::string TotalName(const JobOutline& outline) {
  if (outline.unplanned.empty()) return "total";
  return fmt::format("total without {}", fmt::join(outline.unplanned, "; "));
}

void PrintDevices(const Hardware& hardware, const std::vector<DevicePlan>& plans, const std::string& total) {
  fmt::print("on {} ({:.3g} TFLOP/s, in float64 {:.3g} for sums and {:.3g} for fits, {:.4g} GB, {:.4g} GB/s)\n{}\n\n",
             hardware.device, hardware.narrow_products / 1e12, hardware.sums / 1e12, hardware.fits / 1e12,
             static_cast<double>(hardware.memory) / 1e9, hardware.bandwidth / 1e9,
             hardware.measured ? "These rates were measured just now; the times are the work at these rates."
                               : "These are peaks of a datasheet: the times are lower bounds, which no run reaches.");
  Table memory({"devices", "split", "memory", "weights", "activations", "streams", "sums", "rows", "a fit", "logits",
                "cache", "adapters", "sums on host", "sent", "stream per token"});
  Table times(
      {"devices", "select", "calibrate", "solve", "factorize", "recover", "evaluate", "decode", total, "passes", ""});
  for (const DevicePlan& plan : plans) {
    const PlannedMemory& m = plan.memory;
    const std::string devices = std::to_string(plan.devices);
    memory.Add({devices, std::to_string(plan.stages), Bytes(m.most()), Bytes(m.weights), Bytes(m.activations),
                Bytes(m.streams), Bytes(m.sums), Bytes(m.rows), Bytes(m.fit), Bytes(m.logits), Bytes(m.cache),
                Bytes(m.adapters), Bytes(plan.host_sums), plan.sent == 0 ? "" : Scaled(plan.sent, "B"),
                Bytes(plan.stream_bytes)});
    std::vector<std::string> row = {devices};
    const bool possible = plan.why_not.empty();
    for (const JobStep step : kSteps) row.push_back(possible ? Seconds(plan.seconds[static_cast<size_t>(step)]) : "");
    row.push_back(possible ? Seconds(plan.total()) : "");
    row.push_back(plan.passes == 1 || !possible ? "" : std::to_string(plan.passes));
    row.push_back(possible ? "" : "not possible: " + plan.why_not);
    times.Add(std::move(row));
  }
  memory.DropEmptyColumns();
  times.DropEmptyColumns();
  fmt::print("memory of the device that needs the most, bytes sent by all devices together\n{}\n{}\n{}", memory.Text(),
             hardware.measured ? "time" : "time, at least", times.Text());
}

// Changes of the options with which a job fits that does not fit into the memory of one device; none where it fits.
std::vector<std::string> WaysToFit(const DryRun& run, const MainJob& job, const Hardware& hardware,
                                   const std::vector<DevicePlan>& plans) {
  if (std::any_of(plans.begin(), plans.end(), [](const DevicePlan& plan) { return plan.why_not.empty(); })) return {};
  std::vector<std::string> ways;
  const auto fits = [&](const MainJob& smaller, const std::string& change) {
    const JobOutline outline = OutlineOf(smaller);
    const DevicePlan plan = DevicePlanner(smaller, outline, hardware).On(plans.front().devices, 1);
    if (!plan.why_not.empty()) return false;
    ways.push_back(fmt::format("{} would fit: {}, about {}", change, Bytes(plan.memory.most()), Seconds(plan.total())));
    return true;
  };
  const auto fewer = [&](MainJob smaller, const std::string& also) {
    while (smaller.calibration.samples > 32) {
      smaller.calibration.samples = std::max<int64_t>(32, smaller.calibration.samples / 2);
      const std::string text = run.calib.substr(0, run.calib.find(':'));
      if (fits(smaller, fmt::format("{}--calib {}:{}x{}", also, text.empty() ? "TEXT" : text,
                                    smaller.calibration.samples, smaller.calibration.tokens)))
        return true;
    }
    return false;
  };
  bool found = fewer(job, "");
  MainJob independent = job;
  independent.recipe.mode = Calibration::kIndependent;
  if (OutlineOf(job).in_sequence() && FindCorrection(job.recipe.correction).accepts.has(Setting::kMode)) {
    const char* const option = "--calibration-mode independent";
    found = fits(independent, option) || (!found && fewer(independent, std::string(option) + " ")) || found;
  }
  if (!OutlineOf(job).sequential_inputs.empty()) {  // its fits are larger than those of adapters
    MainJob adapters = independent;
    adapters.recipe.correction = "lra";
    adapters.recipe.heal = Heal::kOff;
    adapters.recipe.gate = false;
    if (adapters.recipe.rank.kind != RankSpec::Kind::kFixed)
      adapters.recipe.rank = RankSpec::Fixed(std::min<int64_t>(64, job.weights->config.hidden));
    const std::string option = fmt::format("--correction lra --lra {} --calibration-mode independent, without healing,",
                                           adapters.recipe.rank.rank);
    found = fits(adapters, option) || (!found && fewer(adapters, option + " with ")) || found;
  }
  if (!found)
    ways.emplace_back(
        "no smaller calibration text fits either: the weights and one fit need more than there is; a "
        "machine with more memory does, or several with --split (docs/scale.md)");
  return ways;
}

Json ModelJson(const ModelShapes& shapes) {
  const Weights& weights = *shapes.weights;
  const ModelConfig& config = weights.config;
  const DepthPlan plan = DepthPlan::Original(config.layers);
  return {{"source", shapes.source},
          {"family", config.family},
          {"layers", config.layers},
          {"hidden", config.hidden},
          {"intermediate", config.intermediate},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocabulary", config.vocab},
          {"parameters", plan.Parameters(weights)},
          {"dtype", Name(weights.blocks.front().AnyDown().dtype)},
          {"bytes_in_files", shapes.stored},
          {"bytes_per_token", plan.BytesPerToken(weights)}};
}

Json OutlineJson(const MainJob& job, const JobOutline& outline) {
  Json json = {{"units", outline.units},
               {"halves", outline.halves},
               {"removed", Json()},
               {"sites", outline.sites},
               {"calibration_mode", Name(outline.mode)},
               {"adapter_parameters", outline.adapter_parameters},
               {"fit_tokens", outline.fit.tokens()},
               {"heldout_tokens", outline.heldout.tokens()},
               {"fit_batches", outline.calibration.fit_batches},
               {"heldout_batches", outline.calibration.heldout_batches},
               {"sums_while_selecting", outline.pass.candidates},
               {"streams_kept_before", outline.pass.depths},
               {"evaluated_tokens", outline.windows.tokens()},
               {"variants", job.variants},
               {"not_planned", outline.unplanned},
               {"steps", Json::array()}};
  if (!outline.removed.empty()) {
    json["removed"] = Json::array();
    for (const BlockPart& part : outline.removed) json["removed"].push_back(Name(part));
  }
  for (const JobStep step : kSteps) {
    const StepFlops flops = FlopsOf(job, outline, step);
    json["steps"].push_back({{"step", Name(step)},
                             {"flops", flops.all()},
                             {"model_flops", flops.model},
                             {"sums_flops", flops.sums},
                             {"fits_flops", flops.fits}});
  }
  return json;
}

Json DeviceJson(const DevicePlan& plan) {
  const PlannedMemory& m = plan.memory;
  Json json = {{"devices", plan.devices},
               {"split", plan.stages},
               {"possible", plan.why_not.empty()},
               {"why_not", plan.why_not},
               {"memory",
                {{"most", m.most()},
                 {"weights", m.weights},
                 {"activations", m.activations},
                 {"streams", m.streams},
                 {"sums", m.sums},
                 {"rows", m.rows},
                 {"fit", m.fit},
                 {"logits", m.logits},
                 {"cache", m.cache},
                 {"adapters", m.adapters},
                 {"sums_on_host", plan.host_sums}}},
               {"passes", plan.passes},
               {"stream_bytes_per_token", plan.stream_bytes},
               {"bytes_sent", plan.sent},
               {"seconds", {{"total", plan.total()}}}};
  for (const JobStep step : kSteps) json["seconds"][Name(step)] = plan.seconds[static_cast<size_t>(step)];
  return json;
}

// Which smaller text would do, where most of the time goes into a long one.
std::string SmallerTexts(const DryRun& run, const MainJob& job, const Hardware& here, const DevicePlan& plan) {
  constexpr int64_t kEnough = 16384, kSamples = 64;  // tokens of a perplexity, samples of a calibration
  const auto seconds = [](const DevicePlan& of, JobStep step) { return of.seconds[static_cast<size_t>(step)]; };
  const auto with = [&](const MainJob& smaller) {
    const JobOutline outline = OutlineOf(smaller);
    return DevicePlanner(smaller, outline, here).On(1, 1);
  };
  std::string text;
  if (job.text_tokens > 2 * kEnough && seconds(plan, JobStep::kEvaluate) > plan.total() / 3) {
    MainJob smaller = job;
    smaller.text_tokens = std::max(kEnough, job.window);
    text += fmt::format("  perplexity is measured on {} tokens; --text-tokens {} would take {} instead of {}\n",
                        job.text_tokens, smaller.text_tokens, Seconds(seconds(with(smaller), JobStep::kEvaluate)),
                        Seconds(seconds(plan, JobStep::kEvaluate)));
  }
  const double reading = seconds(plan, JobStep::kSelect) + seconds(plan, JobStep::kCalibrate);
  if (job.calibration.samples > 2 * kSamples && reading > plan.total() / 3 && run.recipe.gram.load.empty()) {
    MainJob smaller = job;
    smaller.calibration.samples = kSamples;
    const DevicePlan less = with(smaller);
    text +=
        fmt::format("  {} samples are read for the repair; {} (--calib TEXT:{}x{}) would take {} instead of {}\n",
                    job.calibration.samples, kSamples, kSamples, job.calibration.tokens,
                    Seconds(seconds(less, JobStep::kSelect) + seconds(less, JobStep::kCalibrate)), Seconds(reading));
  }
  return text;
}

Hardware MeasureHere(const CommonOptions& common, const ModelConfig& config) {
  if (common.device.starts_with("cuda"))
    FailUsage("--hardware here measures the CPU; for a GPU, name one: a100, h100 or h200");
  Context context = common.MakeContext();
  context.device = Device::kCpu;
  return MeasureThisMachine(context, config);
}

}  // namespace

void DryRunOptions::AddTo(CLI::App& app) {
  CLI::Option* const flag = app.add_flag(
      "--dry-run", wanted,
      "print what the command would do, and the memory, bytes and time that it would take; no weights and\n"
      "texts are read, and nothing is downloaded or written but --json (docs/scale.md)");
  app.add_option("--config", config, "with --dry-run: plan for the model of this config.json, without its weights")
      ->needs(flag)
      ->excludes(app.get_option("--model"))
      ->check(CLI::ExistingFile);
  app.add_option(
         "--hardware", hardware,
         "with --dry-run: here, whose speed is measured for about two seconds, or epyc-9654, a100, h100 or h200,\n"
         "for which the times are lower bounds from the peaks of datasheets")
      ->needs(flag)
      ->capture_default_str();
  app.add_option("--devices", devices, "with --dry-run: numbers of devices to plan for")
      ->needs(flag)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void PrintDryRun(const DryRun& run) {
  const bool here = run.options.hardware == "here";
  Hardware hardware = here ? Hardware() : FindHardware(run.options.hardware);
  const ModelShapes shapes = OpenShapes(run);
  const MainJob job = JobOf(run, shapes.weights, MachineOf(run, here ? nullptr : &hardware, *shapes.weights));
  JobOutline outline = OutlineOf(job);
  outline.unplanned.insert(outline.unplanned.end(), run.besides.begin(), run.besides.end());
  if (run.common.split > 1) CheckOptions(job.recipe, shapes.weights->config, true);
  if (here) hardware = MeasureHere(run.common, shapes.weights->config);
  const DevicePlanner planner(job, outline, hardware);
  std::vector<DevicePlan> plans;
  for (const int64_t devices : run.options.devices)
    plans.push_back(run.common.split > 1 ? planner.On(devices, run.common.split) : planner.On(devices));

  PrintModel(shapes);
  PrintOutline(run, job, outline);
  PrintFlops(job, outline);
  PrintDevices(hardware, plans, TotalName(outline));
  const std::vector<std::string> fitting = WaysToFit(run, job, hardware, plans);
  for (const std::string& way : fitting) fmt::print("  {}\n", way);

  Json json = {{"model", ModelJson(shapes)},
               {"job", OutlineJson(job, outline)},
               {"hardware",
                {{"name", hardware.name},
                 {"device", hardware.device},
                 {"source", hardware.source},
                 {"measured", hardware.measured},
                 {"products", hardware.Products(shapes.weights->blocks.front().AnyDown().dtype)},
                 {"sums", hardware.sums},
                 {"fits", hardware.fits},
                 {"bandwidth", hardware.bandwidth},
                 {"memory", hardware.memory}}},
               {"would_fit", fitting},
               {"plans", Json::array()}};
  for (const DevicePlan& plan : plans) json["plans"].push_back(DeviceJson(plan));
  run.common.WriteJson(json);
}

std::string TimeAhead(const DryRun& run, const LanguageModel& model, const RunTexts& texts) {
  const std::shared_ptr<const Weights>& weights = model.impl().model.weights;
  const Context context = run.common.MakeContext();
  if (context.device != Device::kCpu || !run.common.processes->alone()) return "";
  MainJob job = JobOf(run, weights, MachineOf(run, nullptr, *weights));
  job.calibration.samples = std::max<int64_t>(1, texts.calibration / std::max<int64_t>(1, job.calibration.tokens));
  job.text_tokens = std::max(texts.heldout, job.window);
  JobOutline outline = OutlineOf(job);
  outline.unplanned.insert(outline.unplanned.end(), run.besides.begin(), run.besides.end());
  constexpr double kSlow = 20e9, kFast = 200e9, kShort = 30;  // FLOP/s of a thread, at least and at most; seconds
  double flops = 0;
  for (const JobStep step : kSteps) flops += FlopsOf(job, outline, step).all();
  if (job.recover_seconds + flops / (kFast * context.threads) < kShort &&
      job.recover_seconds + flops / (kSlow * context.threads) < 4 * kShort)
    return "";
  const Hardware here = MeasureHere(run.common, weights->config);
  const DevicePlan plan = DevicePlanner(job, outline, here).On(1, 1);
  if (plan.total() < kShort) return "";
  std::vector<std::string> parts;
  for (const JobStep step : kSteps)
    if (const double seconds = plan.seconds[static_cast<size_t>(step)]; seconds >= plan.total() / 100)
      parts.push_back(fmt::format("{} {}", Name(step), Seconds(seconds)));
  // How many runs the removed blocks form is known when they are chosen, and a run is one fit.
  const bool most = !outline.sequential_inputs.empty() && outline.removed.empty();
  std::string text =
      fmt::format("expected to take {} {}, at the speed of {} (measured just now): {}\n", most ? "at most" : "about",
                  Seconds(plan.total()), here.device, fmt::join(parts, ", "));
  if (!outline.unplanned.empty()) text += fmt::format("  without {}\n", fmt::join(outline.unplanned, "; "));
  return text + SmallerTexts(run, job, here, plan);
}

}  // namespace shiftrt
