// SPDX-License-Identifier: Apache-2.0
#include "shift/selection_pass.h"

#include <algorithm>
#include <utility>

#include "models/block_tensors.h"
#include "runtime/host_memory.h"
#include "runtime/shared_items.h"

namespace shiftrt {

namespace {

// Streams that are kept for the beginning of a calibration alone.
constexpr int64_t kStartStreams = 2;

// True if a pass or a sequential fit over the same text follows, in which the original model runs up to the removed
// layers.
bool PassFollows(const Recipe& recipe) {
  const Correction& correction = CorrectionOf(recipe);
  return correction.fitted_in_sequence() || correction.needs_sums() || recipe.heal != Heal::kOff;
}

// True if a sequential fit follows towards the stream of the original model, which it takes from site to site.
bool FitsTowardsOriginal(const Recipe& recipe) {
  const Correction& correction = CorrectionOf(recipe);
  return correction.fitted_in_sequence() || recipe.heal != Heal::kOff ||
         (correction.needs_sums() && recipe.mode == Calibration::kDrift);
}

bool FitsFromSums(const Recipe& recipe) {
  const Correction& correction = CorrectionOf(recipe);
  return correction.needs == Needs::kStreamSums && correction.per_block() && !recipe.span &&
         recipe.mode == Calibration::kIndependent && recipe.merge == Merge::kOff && recipe.prune.unit == Unit::kBlock;
}

// FLOP of the products of a block with its weights, per token.
double FlopsPerToken(const Weights& weights) {
  double elements = 0;
  ForEachTensor(weights.blocks.front(), Halves::kBoth, [&](const BlockTensor&, const TensorView& tensor) {
    elements += static_cast<double>(tensor.elements());
  });
  return 2 * elements;
}

}  // namespace

double PassMachine::Float64Cost(Isa isa, DType weights) {
  // Twice as many float32 numbers fit into a register, and sums come less near to the peak than products. Products of
  // 16 bits are twice as fast again where the CPU has them, and faster with tiles.
  if (weights == DType::kFloat32) return 3;
  return isa == Isa::kAmx ? 16 : 6;
}

PassMachine PassMachine::Of(const Context& context, const Weights& weights) {
  PassMachine machine;
  machine.memory = UsableMemory(context);
  machine.gpu = context.device == Device::kCuda;
  machine.alone = WorksAlone(context) && !weights.split() && (!machine.gpu || context.gpus.size() == 1);
  machine.float64_cost = Float64Cost(context.isa, weights.blocks.front().AnyDown().dtype);
  return machine;
}

SelectionPass PlanSelectionPass(const Recipe& recipe, const Weights& weights, int64_t fit_tokens,
                                const PassMachine& machine) {
  SelectionPass pass;
  const bool streams_only =
      recipe.prune.layers.empty() && FindCriterion(recipe.prune.criterion).looks_at == Looks::kPass;
  if (!streams_only || !machine.alone || recipe.gram.used() || !PassFollows(recipe)) return pass;
  const Quota quota(recipe.prune, weights);
  const int64_t hidden = weights.config.hidden, candidates = quota.end() - quota.first();
  if (!machine.gpu && FitsFromSums(recipe)) {
    const auto d = static_cast<double>(hidden);
    const double more = 3 * d * d * static_cast<double>(candidates - quota.count()) * machine.float64_cost;
    const double whole = FlopsPerToken(weights) * static_cast<double>(weights.config.layers);
    if (2 * more <= whole && (candidates + quota.count()) * RidgeSums::Bytes(hidden) <= machine.memory) {
      pass.first = quota.first();
      pass.candidates = candidates;
      return pass;
    }
  }
  const int64_t halves = recipe.prune.unit == Unit::kHalf ? 2 : 1, first = quota.first() / halves,
                deepest = (quota.end() - quota.count()) / halves, end = (quota.end() + halves - 1) / halves,
                room = machine.memory / (fit_tokens * hidden * int64_t{sizeof(float)});
  if (!machine.gpu && FitsTowardsOriginal(recipe) && room / 2 > kStartStreams) {
    const int64_t kept = std::min(room / 2, end - first + 1);
    for (int64_t i = 0; i < kept; ++i) pass.depths.push_back(first + (end - first) * i / (kept - 1));
    std::erase(pass.depths, 0);
    return pass;
  }
  const int64_t kept = std::min(kStartStreams, room);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t depth = first + (deepest - first) * (2 * i + 1) / (2 * kept);
    if (depth > 0 && (pass.depths.empty() || depth > pass.depths.back())) pass.depths.push_back(depth);
  }
  return pass;
}

std::vector<Selection> SharedCalibration::Select(const ShiftJob& job, const Recipe& recipe,
                                                 const std::vector<PruneSpec>& others) {
  std::vector<PruneSpec> specs = {recipe.prune};
  specs.insert(specs.end(), others.begin(), others.end());
  const Weights& weights = *job.model.weights;
  const CriterionInput input = {job.context, job.model.weights, &job.calibration.fit, recipe.seed};
  const auto select = [&](std::span<Probe* const> probes) { return SelectLayers(specs, input, job.progress, probes); };
  if (job.calibration.fit.empty()) return select({});
  int64_t tokens = 0;
  for (const Batch& batch : job.calibration.fit) tokens += batch.size();
  const SelectionPass pass = PlanSelectionPass(recipe, weights, tokens, PassMachine::Of(job.context, weights));
  if (pass.candidates > 0) {
    for (int64_t layer = pass.first; layer < pass.first + pass.candidates; ++layer)
      sums_.sites.emplace_back(Site{layer}, job.hidden(), SiteInput::kStream, recipe.weighting);
    RidgeProbe probe(&sums_.fit_batches);
    for (SiteSums& site : sums_.sites) probe.Add(site, site.fit);
    Probe* const probes[] = {&probe};
    return select(probes);
  }
  if (pass.depths.empty()) return select({});
  try {
    streams_.emplace(pass.depths, std::ssize(job.calibration.fit));
    Probe* const probes[] = {&*streams_};
    return select(probes);
  } catch (const OutOfMemory&) {  // a GPU may have room without them
    streams_.reset();
  }
  return select({});
}

std::optional<CalibrationSums> SharedCalibration::TakeSums(const std::vector<Site>& sites) {
  if (sums_.sites.empty()) return std::nullopt;
  CalibrationSums taken;
  taken.fit_batches = sums_.fit_batches;
  for (SiteSums& collected : sums_.sites)
    if (std::find(sites.begin(), sites.end(), collected.site) != sites.end())
      taken.sites.push_back(std::move(collected));
  sums_ = {};
  return taken;
}

std::optional<StartStreams> SharedCalibration::TakeStreams(int64_t layer) {
  if (!streams_) return std::nullopt;
  StartStreams start{layer, {}, {}, {}};
  start.fit = streams_->Take(start.layer, &start.later);
  streams_.reset();
  if (start.fit.empty()) return std::nullopt;
  return start;
}

}  // namespace shiftrt
