// SPDX-License-Identifier: Apache-2.0
#include "estimate/main_job.h"

#include <algorithm>

#include "engine/activations.h"
#include "eval/perplexity.h"
#include "kernels/logprob.h"
#include "runtime/check.h"
#include "runtime/processes.h"
#include "shift/refit/projection.h"
#include "shift/refit/sequential_fit.h"

namespace shiftrt {

namespace {

constexpr int64_t kFloat = sizeof(float);
// Copies of a batch's stream that taps keep at most: block influence keeps three streams.
constexpr int64_t kKeptStreams = 3;
// Matrices (d, d) in float64 that exist while a site is fitted, LAPACK's work space among them: about.
constexpr int64_t kFitMatrices = 6;

class Planner {
 public:
  explicit Planner(const MainJob& job)
      : job_(job),
        recipe_(job.recipe),
        weights_(*job.weights),
        config_(weights_.config),
        correction_(CorrectionOf(recipe_)),
        original_(DepthPlan::Original(config_.layers)) {}

  JobPlan Plan() {
    CheckOptions(recipe_, config_, job_.split > 1);
    CountSites();
    CountTokens();
    CountSequentialFit();
    for (const ModelShare& share : CutModel(config_, original_, job_.split)) {
      const PlannedMemory memory = MemoryOf(share);
      if (memory.most() > plan_.memory.most()) plan_.memory = memory;
    }
    CountSteps();
    ListUnplanned();
    return std::move(plan_);
  }

 private:
  int64_t Collected() const {
    return !correction_.needs_sums() ? 0 : recipe_.gram.all_layers ? config_.layers : plan_.sites;
  }
  int64_t removed_blocks() const { return plan_.units / (plan_.halves ? 2 : 1); }

  // There may be as many runs as blocks while nobody knows which blocks are removed, unless the criterion takes one
  // run.
  void CountSites() {
    const PruneSpec& prune = recipe_.prune;
    plan_.units = RemovalCount(prune, weights_);
    plan_.halves = prune.halves();
    const Criterion* const criterion = prune.layers.empty() ? &FindCriterion(prune.criterion) : nullptr;
    const Looks looks = criterion != nullptr ? criterion->looks_at : Looks::kShape;
    plan_.selects = looks == Looks::kPass;
    if (looks == Looks::kShape) {
      NoProgress quiet;
      plan_.removed = SelectLayers(prune, {Context(), job_.weights, nullptr, recipe_.seed}, quiet).removed;
    }
    plan_.mode = ModeOf(recipe_, job_.split > 1);
    plan_.loads = !recipe_.gram.load.empty();
    const bool known = !plan_.removed.empty(), each_block = correction_.per_block() && !recipe_.span;
    runs_ = known                                            ? std::ssize(RunsOf(plan_.removed))
            : criterion != nullptr && criterion->consecutive ? std::min<int64_t>(plan_.units, 1)
                                                             : plan_.units;
    plan_.sites = correction_.makes == Makes::kNothing ? 0
                  : !each_block                        ? runs_
                  : known                              ? std::ssize(SitesOf(plan_.removed))
                                                       : plan_.units;
    plan_.adapter_parameters = AdapterParameters();
  }

  // A budget is taken as given; energy may keep all directions.
  int64_t AdapterParameters() const {
    if (!correction_.adapters() || plan_.sites == 0) return 0;
    if (!correction_.has_rank()) return CheckedProduct({plan_.sites, config_.hidden});
    const RankSpec& rank = recipe_.rank;
    if (rank.kind == RankSpec::Kind::kBudget) return rank.parameters;
    const int64_t width = rank.kind == RankSpec::Kind::kFixed ? 2 * rank.rank + 1 : config_.hidden + 1;
    return CheckedProduct({plan_.sites, width, config_.hidden});
  }

  void CountTokens() {
    const int64_t length = std::min(job_.calibration.tokens, config_.max_positions);
    plan_.calibration = CountCalibration(job_.calibration.samples, length,
                                         CalibrationBatchTokens(job_.machine.gpu ? Device::kCuda : Device::kCpu));
    plan_.fit = {plan_.calibration.fit_samples, length};
    plan_.heldout = {plan_.calibration.heldout_samples, length};
    plan_.windows = {job_.text_tokens / job_.window, job_.window};
    Recipe resolved = recipe_;
    resolved.mode = plan_.mode;
    PassMachine machine = job_.machine;
    machine.alone = machine.alone && job_.split == 1;
    plan_.pass = PlanSelectionPass(resolved, weights_, plan_.fit.tokens(), machine);
  }

  // All blocks that stay may be healed while nobody knows which blocks are removed.
  void CountSequentialFit() {
    const bool known = !plan_.removed.empty(), heals = recipe_.heal != Heal::kOff;
    const std::vector<Site> runs = known ? RunsOf(plan_.removed) : std::vector<Site>();
    const auto add = [&](int64_t fits, int64_t inputs) {
      sequential_inputs_.insert(sequential_inputs_.end(), std::max<int64_t>(0, fits), inputs);
    };
    if (correction_.fitted_in_sequence()) {
      const SiteInput input = correction_.first_input();
      if (!known) add(runs_, kDownProjection.Width(input, config_));
      for (const Site& run : runs) {
        const Projection& before = run.begin() % 2 == 0 ? kDownProjection : kOutputProjection;
        add(1, run.begin() == 0 ? config_.hidden : before.Width(input, config_));
      }
    }
    if (heals) {
      const int64_t after =
          std::max<int64_t>(0, config_.layers - removed_blocks() - (known ? plan_.removed.front().layer : 0));
      // A run that is corrected has the fit of the projection before it already.
      add(after - std::max<int64_t>(0, std::ssize(sequential_inputs_) - 1), kDownProjection.Inputs(config_));
      if (recipe_.heal == Heal::kAll) add(after, kOutputProjection.Inputs(config_));
    }
    // The adapters on the normed stream are fitted after the projections before them.
    if (correction_.fitted_in_sequence() && correction_.normed_adapters()) add(runs_, config_.hidden);
    plan_.sequential = !sequential_inputs_.empty();
    if (!plan_.sequential) return;
    const int64_t first = known ? SequentialFitStart(plan_.removed) : 0;
    const int64_t end = known && !heals ? plan_.removed.back().layer + 1 : config_.layers;
    // Both streams, and each fitted block once more.
    sequential_rows_ =
        first + 2 * (end - first) - std::min(removed_blocks(), end - first) + std::ssize(sequential_inputs_);
  }

  PlannedMemory MemoryOf(const ModelShare& share) {
    const bool gpu = job_.machine.gpu;
    const DType dtype = ExpandedType(weights_.blocks.front().AnyDown().dtype);
    const int64_t d = config_.hidden;
    const int64_t widest = sequential_inputs_.empty() ? d : std::max(d, *std::ranges::max_element(sequential_inputs_));
    const int64_t window_batch = WindowsPerBatch(job_.window) * job_.window;
    const int64_t tokens = std::max(plan_.calibration.samples_per_batch * plan_.fit.length, window_batch);
    PlannedMemory memory;
    memory.weights = WeightBytes(weights_, original_, share);
    const int64_t per_token = gpu ? ActivationBytesPerToken(config_, dtype) : CpuActivationBytesPerToken(config_);
    const int64_t streams = kKeptStreams + (job_.split > 1 ? 1 + Processes::kStreamsAhead : 0);
    memory.activations = CheckedProduct({tokens, per_token + streams * kFloat * d});
    memory.adapters = CheckedProduct({kFloat, plan_.adapter_parameters});
    if (share.last) {
      const int64_t scored = std::min(tokens, job_.window);
      const int64_t logits = gpu ? kFloat * std::min(scored, kGpuScoredRows) * std::min(config_.vocab, kGpuVocabChunk)
                                 : TokenLogProbsBytes(scored);
      memory.logits = std::max(logits, kFloat * config_.vocab);
    }
    const DepthPlan own = {{original_.stages.begin() + share.begin, original_.stages.begin() + share.end}};
    const DType cached = gpu ? dtype : DType::kFloat32;
    memory.cache = CheckedProduct({job_.positions, KvBytesPerPosition(config_, own, cached)}) +
                   (gpu ? 2 : 1) * StateBytes(config_, own);
    if (plan_.sites > 0 || plan_.sequential)
      memory.fit = CheckedProduct({kFitMatrices, widest, widest, int64_t{sizeof(double)}});
    const int64_t fit = plan_.fit.tokens(), all = fit + plan_.heldout.tokens();
    const int64_t kept = std::ssize(plan_.pass.depths);
    memory.streams = CheckedProduct({kept, fit, kFloat, d});
    if (plan_.sequential) {
      memory.streams = std::max(memory.streams, CheckedProduct({2, all, kFloat, d}));
      memory.sums = CheckedProduct({2, RidgeSums::Bytes(widest, d)});
    }
    // All removed blocks may be on one process.
    const int64_t collected =
        plan_.loads ? 0 : std::min(Collected(), (share.end - share.begin) * (plan_.halves ? 2 : 1));
    if (collected > 0 && plan_.mode == Calibration::kDrift) {
      // The sequential fit with drift keeps the streams of the selection until it has passed them. The first becomes
      // one of its own two streams.
      memory.streams =
          CheckedProduct({2, all, kFloat, d}) + CheckedProduct({std::max<int64_t>(0, kept - 1), fit, kFloat, d});
    } else if (collected > 0 && plan_.in_sequence()) {
      memory.streams = std::max(memory.streams, CheckedProduct({all, kFloat, d}));
    }
    if (collected > 0) CountSums(plan_.in_sequence() ? 1 : collected, memory);
    return memory;
  }

  // The sums of these sites, in passes over the text if memory has no room for all.
  void CountSums(int64_t sites, PlannedMemory& memory) {
    const int64_t d = config_.hidden;
    int64_t at_once = sites;
    if (job_.machine.gpu) {
      // A GPU needs room for the sums of fitted tokens or of held-out ones, with both on its host.
      const int64_t room = job_.device_memory - memory.weights - memory.activations - memory.streams;
      while (at_once > 1 && CheckedProduct({at_once, RidgeSums::Bytes(d)}) > room) at_once = (at_once + 1) / 2;
      memory.sums = CheckedProduct({at_once, RidgeSums::Bytes(d)});
      memory.host_sums = CheckedProduct({sites, SiteSums::Bytes(d)});
    } else if (plan_.pass.candidates > 0) {
      memory.sums = CheckedProduct({plan_.pass.candidates + sites, RidgeSums::Bytes(d)});
    } else {
      at_once = std::clamp<int64_t>(job_.machine.memory / SiteSums::Bytes(d), 1, sites);
      memory.sums = CheckedProduct({at_once, SiteSums::Bytes(d)});
    }
    plan_.passes = std::max(plan_.passes, (sites + at_once - 1) / at_once);
  }

  // Held-out tokens of all models whose loss decides about the repair or says what it gains.
  int64_t LossTokens() const {
    const int64_t heldout = plan_.heldout.tokens();
    const bool corrects = correction_.makes != Makes::kNothing || recipe_.heal != Heal::kOff;
    int64_t tokens = 0;
    if (recipe_.gate) tokens += (plan_.sites + 1) * std::min(kGateTokens, heldout);
    if (recipe_.heal != Heal::kOff) tokens += 2 * std::min(kGateTokens, heldout);
    if (corrects && recipe_.benefit != Benefit::kUnmeasured) tokens += 3 * std::min(kGainTokens, heldout);
    return tokens;
  }

  static double Number(int64_t count) { return static_cast<double>(count); }
  // FLOP of so many blocks, which differ by their windows of attention at most.
  double Blocks(const Sequences& text, double count) const {
    double flops = 0;
    for (int64_t layer = 0; layer < config_.layers; ++layer) flops += BlockFlops(weights_, layer, text);
    return flops * count / static_cast<double>(config_.layers);
  }

  StepWork Calibrate() const {
    const Sequences all = {plan_.fit.count + plan_.heldout.count, plan_.fit.length};
    const bool known = !plan_.removed.empty();
    StepWork calibrate{.name = "calibrate", .products = Blocks(all, Number(sequential_rows_))};
    for (const int64_t inputs : sequential_inputs_)
      calibrate.float64 += RidgeSumsFlops(inputs, config_.hidden, all.tokens());
    if (Collected() > 0 && !plan_.loads) {
      const Sequences& text = plan_.pass.candidates > 0 ? plan_.heldout : all;  // the selection summed the fitted text
      // A pass ends after the last removed block. Mode drift runs the kept blocks on the corrected stream, too.
      int64_t runs = known && !recipe_.gram.all_layers ? plan_.removed.back().layer + 1 : config_.layers;
      if (plan_.mode == Calibration::kDrift)
        runs += std::max<int64_t>(0, runs - (known ? plan_.removed.front().layer : 0) - removed_blocks());
      calibrate.products += Number(plan_.passes) * Blocks(text, Number(runs));
      calibrate.float64 += Number(Collected()) * RidgeSumsFlops(config_.hidden, config_.hidden, text.tokens());
    }
    if (const int64_t losses = LossTokens(); losses > 0)
      calibrate.products +=
          Blocks({losses / all.length, all.length}, Number(config_.layers)) + HeadFlops(config_, losses);
    return calibrate;
  }

  StepWork Solve() const {
    StepWork solve{.name = "solve"};
    if (correction_.needs_sums() && correction_.has_lambda())
      solve.float64 = Number(plan_.sites) * SolveFlops(recipe_.lambda, config_.hidden, config_.hidden);
    for (const int64_t inputs : sequential_inputs_) solve.float64 += SolveFlops(recipe_.lambda, inputs, config_.hidden);
    return solve;
  }

  void CountSteps() {
    const int64_t d = config_.hidden;
    // The original alone has all blocks, and the blocks before the first removed one run once for all variants.
    const double layers = Number(config_.layers), kept = layers - Number(plan_.units) / (plan_.halves ? 2 : 1);
    const double others = Number(job_.variants - 1), variants = Number(job_.variants);
    const double shared = plan_.removed.empty() ? 0 : Number(plan_.removed.front().layer);
    const double token = BlockFlopsPerToken(weights_) / layers, head = HeadFlops(config_, 1);
    const double decoded = Number(job_.decoded), scored = Number(plan_.windows.count * (job_.window - 1));
    plan_.steps = {{.name = "select",
                    .products = plan_.selects ? Blocks(plan_.fit, layers) : 0,
                    .float64 = Number(plan_.pass.candidates) * RidgeSumsFlops(d, d, plan_.fit.tokens())},
                   Calibrate(),
                   Solve(),
                   {.name = "factorize",
                    .float64 = correction_.has_rank() ? Number(plan_.sites) * ReduceFlops(recipe_.rank, d) : 0},
                   // Forwards once, and backwards twice as much.
                   {.name = "recover",
                    .products = Number(job_.recover_tokens) *
                                (3 * (token * kept + head) + (job_.teacher ? token * layers + head : 0)),
                    .seconds = job_.recover_seconds},
                   {.name = "evaluate",
                    .products = Blocks(plan_.windows, layers + others * (kept - shared)) + variants * scored * head},
                   {.name = "decode",
                    .products = decoded * (token * (layers + others * kept) + variants * head),
                    .reads = decoded * variants * Number(original_.BytesPerToken(weights_))}};
  }

  void ListUnplanned() {
    const auto add = [&](bool wanted, std::string what) {
      if (wanted) plan_.unplanned.push_back(std::move(what));
    };
    const PruneSpec& prune = recipe_.prune;
    add(prune.layers.empty() && FindCriterion(prune.criterion).looks_at == Looks::kPasses,
        fmt::format("selection by {}, which takes several passes", prune.criterion));
    add(!correction_.needs_sums() && !correction_.fitted_in_sequence() && correction_.needs != Needs::kNothing,
        fmt::format("the passes and fits of correction {}", correction_.name));
    add(prune.max_divergence > 0, "the search for the largest cut");
    add(recipe_.merge != Merge::kOff, "merging, and the sums of runs that are merged");
  }

  const MainJob& job_;
  const Recipe& recipe_;
  const Weights& weights_;
  const ModelConfig& config_;
  const Correction& correction_;
  const DepthPlan original_;
  JobPlan plan_;
  // The inputs of each projection, or stream with one, that a sequential fit fits, at most, and the blocks that it
  // runs, on one stream after another.
  std::vector<int64_t> sequential_inputs_;
  int64_t runs_ = 0;  // the most runs of removed blocks that there can be
  int64_t sequential_rows_ = 0;
};

}  // namespace

int64_t CheckedProduct(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    Check(!__builtin_mul_overflow(product, factor, &product), "the product of {} does not fit into 64 bits",
          fmt::join(factors, ", "));
  return product;
}

int64_t PlannedMemory::most() const {
  // A GPU's sums go to its host after the pass.
  return weights + adapters +
         std::max(
             {activations + streams + sums, streams + (host_sums > 0 ? 0 : sums) + fit, activations + logits + cache});
}

const StepWork& JobPlan::Step(const std::string& name) const {
  return *std::ranges::find_if(steps, [&](const StepWork& step) { return step.name == name; });
}

JobPlan PlanOf(const MainJob& job) { return Planner(job).Plan(); }

}  // namespace shiftrt
