// SPDX-License-Identifier: Apache-2.0
#include "estimate/main_job.h"

#include <algorithm>

#include "eval/perplexity.h"
#include "runtime/check.h"
#include "shift/refit/projection.h"
#include "shift/refit/sequential_fit.h"

namespace shiftrt {

namespace {

// True if the layers are chosen without reading text or weights.
bool ChosenByShape(const PruneSpec& spec) {
  return !spec.layers.empty() || FindCriterion(spec.criterion).looks_at == Looks::kShape;
}

std::vector<std::string> Unplanned(const Recipe& recipe) {
  std::vector<std::string> unplanned;
  const auto add = [&](bool wanted, std::string what) {
    if (wanted) unplanned.push_back(std::move(what));
  };
  const Correction& correction = CorrectionOf(recipe);
  const bool passes = recipe.prune.layers.empty() && FindCriterion(recipe.prune.criterion).looks_at == Looks::kPasses;
  add(passes, fmt::format("selection by {}, which takes several passes", recipe.prune.criterion));
  const bool other =
      !correction.needs_sums() && !correction.fitted_in_sequence() && correction.needs != Needs::kNothing;
  add(other, fmt::format("the passes and fits of correction {}", correction.name));
  add(recipe.prune.max_divergence > 0, "the search for the largest cut");
  add(recipe.merge != Merge::kOff, "merging, and the sums of runs that are merged");
  return unplanned;
}

// Plans a sequential fit. Where it is not known which blocks are removed, each may be a run of its own, and all
// blocks that stay may be healed.
void PlanSequentialFit(const Recipe& recipe, const ModelConfig& config, JobOutline& outline) {
  const Correction& correction = CorrectionOf(recipe);
  const bool known = !outline.removed.empty();
  const std::vector<Site> runs = known ? RunsOf(outline.removed) : std::vector<Site>();
  const int64_t removed = outline.units / (outline.halves ? 2 : 1);
  if (correction.fitted_in_sequence()) {
    const SiteInput input = correction.first_input();
    if (!known) outline.sequential_inputs.assign(outline.units, kDownProjection.Width(input, config));
    for (const Site& run : runs) {
      const Projection& before = run.begin() % 2 == 0 ? kDownProjection : kOutputProjection;
      outline.sequential_inputs.push_back(run.begin() == 0 ? config.hidden : before.Width(input, config));
    }
  }
  if (recipe.heal != Heal::kOff) {
    const int64_t after = std::max<int64_t>(0, config.layers - removed - (known ? outline.removed.front().layer : 0));
    // A run that is corrected has the fit of the projection before it already.
    const int64_t fitted = std::max<int64_t>(0, std::ssize(outline.sequential_inputs) - 1);
    outline.sequential_inputs.insert(outline.sequential_inputs.end(), std::max<int64_t>(0, after - fitted),
                                     kDownProjection.Inputs(config));
    if (recipe.heal == Heal::kAll)
      outline.sequential_inputs.insert(outline.sequential_inputs.end(), after, kOutputProjection.Inputs(config));
  }
  // The adapters on the normed stream are fitted after the projections before them.
  if (correction.fitted_in_sequence() && correction.normed_adapters())
    outline.sequential_inputs.insert(outline.sequential_inputs.end(), known ? std::ssize(runs) : outline.units,
                                     config.hidden);
  if (outline.sequential_inputs.empty()) return;
  const int64_t first = known ? SequentialFitStart(outline.removed) : 0;
  const int64_t end = known && recipe.heal == Heal::kOff ? outline.removed.back().layer + 1 : config.layers;
  // Both streams, and each fitted block once more.
  outline.sequential_rows =
      first + 2 * (end - first) - std::min(removed, end - first) + std::ssize(outline.sequential_inputs);
}

// Held-out tokens of all models whose loss decides about the repair or says what it gains.
int64_t LossTokens(const Recipe& recipe, const JobOutline& outline) {
  const int64_t heldout = outline.heldout.tokens();
  const bool corrects = CorrectionOf(recipe).makes != Makes::kNothing || recipe.heal != Heal::kOff;
  int64_t tokens = 0;
  if (recipe.gate) tokens += (outline.sites + 1) * std::min(kGateTokens, heldout);
  if (recipe.heal != Heal::kOff) tokens += 2 * std::min(kGateTokens, heldout);
  if (corrects && recipe.benefit != Benefit::kUnmeasured) tokens += 3 * std::min(kGainTokens, heldout);
  return tokens;
}

// Parameters of the adapters of all sites. A budget is taken as given; energy may keep all directions.
int64_t AdapterParameters(const Recipe& recipe, int64_t sites, int64_t hidden) {
  if (!CorrectionOf(recipe).adapters() || sites == 0) return 0;
  if (!CorrectionOf(recipe).has_rank()) return CheckedProduct({sites, hidden});
  const RankSpec& rank = recipe.rank;
  if (rank.kind == RankSpec::Kind::kBudget) return rank.parameters;
  const int64_t width = rank.kind == RankSpec::Kind::kFixed ? 2 * rank.rank + 1 : hidden + 1;
  return CheckedProduct({sites, width, hidden});
}

}  // namespace

int64_t CheckedProduct(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    Check(!__builtin_mul_overflow(product, factor, &product), "the product of {} does not fit into 64 bits",
          fmt::join(factors, ", "));
  return product;
}

const char* Name(JobStep step) {
  switch (step) {
    case JobStep::kSelect: return "select";
    case JobStep::kCalibrate: return "calibrate";
    case JobStep::kSolve: return "solve";
    case JobStep::kReduce: return "factorize";
    case JobStep::kRecover: return "recover";
    case JobStep::kEvaluate: return "evaluate";
    case JobStep::kDecode: return "decode";
  }
  return "?";
}

int64_t JobOutline::widest(int64_t hidden) const {
  const auto most = std::max_element(sequential_inputs.begin(), sequential_inputs.end());
  return most == sequential_inputs.end() ? hidden : std::max(hidden, *most);
}

JobOutline OutlineOf(const MainJob& job) {
  const ModelConfig& config = job.weights->config;
  const Recipe& recipe = job.recipe;
  CheckOptions(recipe, config);
  JobOutline outline;
  outline.units = RemovalCount(recipe.prune, *job.weights);
  outline.halves = recipe.prune.halves();
  if (ChosenByShape(recipe.prune)) {
    NoProgress quiet;
    outline.removed = SelectLayers(recipe.prune, {Context(), job.weights, nullptr, recipe.seed}, quiet).removed;
  }
  const Correction& correction = CorrectionOf(recipe);
  const bool each = correction.per_block() && !recipe.span;
  // If it is not known which blocks are removed, there may be as many runs as blocks.
  outline.sites = correction.makes == Makes::kNothing ? 0
                  : outline.removed.empty()           ? outline.units
                  : each                              ? std::ssize(SitesOf(outline.removed))
                                                      : std::ssize(RunsOf(outline.removed));
  outline.collected = !correction.needs_sums() ? 0 : recipe.gram.all_layers ? config.layers : outline.sites;
  const bool known = !outline.removed.empty() && !recipe.gram.all_layers;
  outline.tapped = known ? outline.removed.back().layer + 1 : config.layers;
  if (!outline.removed.empty()) {
    outline.shared = outline.removed.front().layer;
    outline.after = RunsOf(outline.removed).front().last() + 1;
  }
  outline.mode = ModeOf(recipe, false);
  if (outline.mode == Calibration::kDrift) {
    const int64_t first = known ? outline.removed.front().layer : 0;
    outline.again = std::max<int64_t>(0, outline.tapped - first - outline.units / (outline.halves ? 2 : 1));
  }
  if (correction.has_rank() && recipe.rank.kind == RankSpec::Kind::kFixed) outline.rank = recipe.rank.rank;
  outline.adapter_parameters = AdapterParameters(recipe, outline.sites, config.hidden);
  outline.loads = !recipe.gram.load.empty();
  outline.selects = recipe.prune.layers.empty() && FindCriterion(recipe.prune.criterion).looks_at == Looks::kPass;
  const int64_t length = std::min(job.calibration.tokens, config.max_positions);
  outline.calibration = CountCalibration(job.calibration.samples, length,
                                         CalibrationBatchTokens(job.machine.gpu ? Device::kCuda : Device::kCpu));
  outline.fit = {outline.calibration.fit_samples, length};
  outline.heldout = {outline.calibration.heldout_samples, length};
  outline.windows = {job.text_tokens / job.window, job.window};
  outline.windows_per_batch = WindowsPerBatch(job.window);
  Recipe resolved = recipe;
  resolved.mode = outline.mode;
  outline.pass = PlanSelectionPass(resolved, *job.weights, outline.fit.tokens(), job.machine);
  PlanSequentialFit(recipe, config, outline);
  outline.loss_tokens = LossTokens(recipe, outline);
  outline.unplanned = Unplanned(recipe);
  try {
    CheckOptions(recipe, config, true);
  } catch (const UsageError& error) {
    outline.no_split = error.reason();
  }
  return outline;
}

StepFlops FlopsOf(const MainJob& job, const JobOutline& outline, JobStep step) {
  const Weights& weights = *job.weights;
  const ModelConfig& config = weights.config;
  const auto blocks = [&](const Sequences& text, int64_t count) {
    double flops = 0;
    for (int64_t layer = 0; layer < count; ++layer) flops += BlockFlops(weights, layer, text);
    return flops;
  };
  // The work of all variants in units of that of the original, which alone has all blocks.
  const double removed = static_cast<double>(outline.units) / static_cast<double>(outline.halves ? 2 : 1) /
                         static_cast<double>(config.layers);
  const double variants = 1 + static_cast<double>(job.variants - 1) * (1 - removed);
  const auto sites = static_cast<double>(outline.sites);
  // Blocks of a model differ by their windows of attention at most.
  const auto some = [&](const Sequences& text, int64_t count) {
    return blocks(text, config.layers) * static_cast<double>(count) / static_cast<double>(config.layers);
  };
  switch (step) {
    case JobStep::kSelect:
      return {outline.selects ? blocks(outline.fit, config.layers) : 0,
              static_cast<double>(outline.pass.candidates) *
                  RidgeSumsFlops(config.hidden, config.hidden, outline.fit.tokens()),
              0};
    case JobStep::kCalibrate: {
      const Sequences all = {outline.fit.count + outline.heldout.count, outline.fit.length};
      StepFlops flops;
      if (outline.collected > 0 && !outline.loads) {
        const Sequences fit = outline.pass.candidates > 0 ? Sequences() : outline.fit;  // otherwise it is done
        const int64_t tokens = fit.tokens() + outline.heldout.tokens();
        const int64_t runs = outline.tapped + outline.again;
        flops.model = some(fit, runs) + some(outline.heldout, runs);
        flops.sums = static_cast<double>(outline.collected) * RidgeSumsFlops(config.hidden, config.hidden, tokens);
      }
      flops.model += some(all, outline.sequential_rows);
      for (const int64_t inputs : outline.sequential_inputs)
        flops.sums += RidgeSumsFlops(inputs, config.hidden, all.tokens());
      if (outline.loss_tokens > 0) {
        const Sequences losses = {outline.loss_tokens / outline.heldout.length, outline.heldout.length};
        flops.model += some(losses, config.layers) + HeadFlops(config, outline.loss_tokens);
      }
      return flops;
    }
    case JobStep::kSolve: {
      const Correction& correction = CorrectionOf(job.recipe);
      const bool solves = correction.needs_sums() && correction.has_lambda();
      double fits = solves ? sites * SolveFlops(job.recipe.lambda, config.hidden, config.hidden) : 0;
      for (const int64_t inputs : outline.sequential_inputs)
        fits += SolveFlops(job.recipe.lambda, inputs, config.hidden);
      return {0, 0, fits};
    }
    case JobStep::kReduce:
      return {0, 0, CorrectionOf(job.recipe).has_rank() ? sites * ReduceFlops(job.recipe.rank, config.hidden) : 0};
    case JobStep::kRecover: {  // forwards once and backwards twice as much
      const auto tokens = static_cast<double>(job.recover_tokens);
      const double step = BlockFlopsPerToken(weights) * (1 - removed) + HeadFlops(config, 1);
      const double teacher = job.teacher ? BlockFlopsPerToken(weights) + HeadFlops(config, 1) : 0;
      return {tokens * (3 * step + teacher), 0, 0};
    }
    case JobStep::kEvaluate:
      return {variants * blocks(outline.windows, config.layers) -
                  static_cast<double>(job.variants - 1) * blocks(outline.windows, outline.shared) +
                  static_cast<double>(job.variants) * HeadFlops(config, outline.windows.count * (job.window - 1)),
              0, 0};
    case JobStep::kDecode: {
      const double tokens = static_cast<double>(job.decoded);
      return {variants * tokens * BlockFlopsPerToken(weights) +
                  static_cast<double>(job.variants) * tokens * HeadFlops(config, 1),
              0, 0};
    }
  }
  return {};
}

}  // namespace shiftrt
