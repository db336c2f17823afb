// SPDX-License-Identifier: Apache-2.0
#include "estimate/devices.h"

#include <algorithm>
#include <numeric>

#include "engine/activations.h"
#include "engine/exchanged_collector.h"
#include "estimate/messages.h"
#include "kernels/logprob.h"
#include "runtime/check.h"
#include "runtime/processes.h"
#include "shift/sums/collect.h"

namespace shiftrt {

namespace {

constexpr int64_t kFloat = sizeof(float);
// Copies of a batch's stream that taps keep at most: block influence keeps three streams.
constexpr int64_t kKeptStreams = 3;
// Matrices (d, d) in float64 that exist while a site is fitted, LAPACK's work space among them: about.
constexpr int64_t kFitMatrices = 6;

int64_t Rounds(int64_t items, int64_t devices) { return (items + devices - 1) / devices; }

}  // namespace

int64_t PlannedMemory::most() const {
  return weights + adapters +
         std::max({activations + streams + sums + rows, streams + (sums_stay ? sums : 0) + fit,
                   activations + logits + cache});
}

double DevicePlan::total() const { return std::accumulate(std::begin(seconds), std::end(seconds), 0.0); }

DevicePlanner::DevicePlanner(const MainJob& job, const JobOutline& outline, const Hardware& hardware)
    : job_(job),
      outline_(outline),
      hardware_(hardware),
      config_(job.weights->config),
      plan_(DepthPlan::Original(config_.layers)),
      dtype_(ExpandedType(job.weights->blocks.front().AnyDown().dtype)) {}

// Places that may be collected on a device with these blocks: all that are removed may be its own.
int64_t DevicePlanner::Collected(const ModelShare& share) const {
  if (outline_.collected == config_.layers || outline_.removed.empty()) {
    const int64_t most = (share.end - share.begin) * (outline_.halves ? 2 : 1);
    return std::min(outline_.collected, most);
  }
  const bool each = CorrectionOf(job_.recipe).per_block() && !job_.recipe.span;
  int64_t sites = 0;
  for (const Site& site : each ? SitesOf(outline_.removed) : RunsOf(outline_.removed))
    sites += share.Has(site.last()) ? 1 : 0;
  return std::min(sites, outline_.collected);
}

// A message with the rows of one site.
int64_t DevicePlanner::RowsBytes(int64_t tokens) const {
  return RowsMessageBytes(tokens, config_.hidden, config_.hidden, !job_.recipe.weighting.uniform());
}

// Sets the plan's passes and its sums on the host, too.
PlannedMemory DevicePlanner::MemoryOf(const ModelShare& share, DevicePlan& plan) const {
  const int64_t tokens = std::max(outline_.calibration_batch(), outline_.window_batch());
  const int64_t d = config_.hidden, groups = plan.devices / plan.stages, widest = outline_.widest(d);
  PlannedMemory memory;
  memory.weights = WeightBytes(*job_.weights, plan_, share);
  memory.sums_stay = !hardware_.gpu;
  const int64_t per_token =
      hardware_.gpu ? ActivationBytesPerToken(config_, dtype_) : CpuActivationBytesPerToken(config_);
  const int64_t streams = kKeptStreams + (plan.stages > 1 ? 1 + Processes::kStreamsAhead : 0);
  memory.activations = CheckedProduct({tokens, per_token + streams * kFloat * d});
  memory.adapters = CheckedProduct({kFloat, outline_.adapter_parameters});
  if (share.last) {
    const int64_t scored = std::min(tokens, job_.window);
    const int64_t logits = hardware_.gpu
                               ? kFloat * std::min(scored, kGpuScoredRows) * std::min(config_.vocab, kGpuVocabChunk)
                               : TokenLogProbsBytes(scored);
    memory.logits = std::max(logits, kFloat * config_.vocab);
  }
  const DepthPlan own = {{plan_.stages.begin() + share.begin, plan_.stages.begin() + share.end}};
  const DType cached = hardware_.gpu ? dtype_ : DType::kFloat32;
  memory.cache = CheckedProduct({job_.positions, KvBytesPerPosition(config_, own, cached)}) + StateBytes(config_, own);
  if (outline_.sites > 0 || !outline_.sequential_inputs.empty())
    memory.fit = CheckedProduct({kFitMatrices, widest, widest, int64_t{sizeof(double)}});
  // A fit in sequence holds the sums of one site at a time, and the streams of all batches of the device.
  const bool in_sequence = plan.stages == 1 && outline_.in_sequence();
  const int64_t collected = in_sequence ? std::min<int64_t>(1, Collected(share)) : Collected(share);
  // Each site is added up by one of the groups. In the memory of hosts, groups of one have the sums of all sites.
  const int64_t owned = Rounds(collected, groups);
  const int64_t sites = plan.stages > 1 || hardware_.gpu ? owned : collected;
  const SelectionPass pass = plan.devices == 1 ? outline_.pass : SelectionPass();
  memory.streams = CheckedProduct({std::ssize(pass.depths), outline_.fit.tokens(), kFloat, d});
  if (!outline_.sequential_inputs.empty()) {
    const int64_t tokens_held = Rounds(outline_.fit.tokens() + outline_.heldout.tokens(), groups);
    memory.streams = std::max(memory.streams, CheckedProduct({2, tokens_held, kFloat, d}));
    memory.sums = CheckedProduct({2, RidgeSums::Bytes(widest, d)});
  }
  if (sites == 0 || outline_.loads) return memory;
  if (in_sequence) {
    const bool drift = outline_.mode == Calibration::kDrift;
    const int64_t streams =
        CheckedProduct({drift ? 2 : 1, Rounds(outline_.fit.tokens() + outline_.heldout.tokens(), groups), kFloat, d});
    // The sequential fit with drift keeps them until it has passed them. The first becomes one of its own two streams.
    const int64_t kept = std::max<int64_t>(0, std::ssize(pass.depths) - 1);
    memory.streams =
        drift ? streams + CheckedProduct({kept, outline_.fit.tokens(), kFloat, d}) : std::max(memory.streams, streams);
  }

  // On a CPU the sums of fitted and of held-out tokens are there at the same time. A GPU needs room for one after the
  // other, with both on its host; it keeps both where it has much more room (linalg::Solver::MayStay).
  int64_t at_once = sites;
  if (hardware_.gpu) {
    const int64_t room = hardware_.memory - memory.weights - memory.activations - memory.streams;
    while (at_once > 1 && CheckedProduct({at_once, RidgeSums::Bytes(d)}) > room) at_once = (at_once + 1) / 2;
    memory.sums = CheckedProduct({at_once, RidgeSums::Bytes(d)});
    plan.host_sums =
        std::max(plan.host_sums, CheckedProduct({plan.stages > 1 ? owned : collected, SiteSums::Bytes(d)}));
  } else {
    Context limited;
    limited.memory = job_.memory > 0 ? job_.memory : std::max<int64_t>(1, (hardware_.memory - memory.weights) / 4 * 3);
    at_once = pass.candidates > 0 ? sites : std::clamp<int64_t>(SitesInMemory(limited, d), 1, sites);
    memory.sums = CheckedProduct({at_once, SiteSums::Bytes(d)});
    if (pass.candidates > 0) memory.sums = CheckedProduct({pass.candidates + sites, RidgeSums::Bytes(d)});
  }
  if (groups > 1) {
    // The rows of the sites of one pass. A GPU that adds them up has the rows of all groups at the same time.
    const int64_t own = std::min(collected, sites == owned ? at_once * groups : at_once);
    const int64_t others = hardware_.gpu ? at_once * (groups - 1) : 0;
    memory.rows = CheckedProduct({own + others, RowsBytes(outline_.calibration_batch())});
  }
  plan.passes = std::max(plan.passes, Rounds(sites, at_once));
  return memory;
}

// The work of a step, divided evenly among the devices at the rates of the hardware. A fit runs on one device, and in
// sequence one fit waits for another.
void DevicePlanner::SetSeconds(DevicePlan& plan) const {
  const bool in_sequence = plan.stages == 1 && outline_.in_sequence();
  const auto devices = static_cast<double>(plan.devices);
  const double fitting = in_sequence || !outline_.sequential_inputs.empty()
                             ? 1
                             : static_cast<double>(std::clamp<int64_t>(outline_.sites, 1, plan.devices));
  JobOutline outline = outline_;
  if (plan.stages > 1) outline.again = 0;  // a model that is split is fitted from one pass
  if (plan.devices > 1) outline.pass = {};
  for (const JobStep step : kSteps) {
    const StepFlops flops = FlopsOf(job_, outline, step);
    const double again = step == JobStep::kCalibrate ? static_cast<double>(plan.passes) : 1;
    plan.seconds[static_cast<size_t>(step)] =
        (again * flops.model / hardware_.Products(dtype_) + flops.sums / hardware_.sums) / devices +
        flops.fits / hardware_.fits / fitting;
  }
  plan.seconds[static_cast<size_t>(JobStep::kRecover)] += job_.recover_seconds;
  // One token after another reads all weights, on however many devices.
  plan.seconds[static_cast<size_t>(JobStep::kDecode)] = static_cast<double>(job_.variants * job_.decoded) *
                                                        static_cast<double>(plan_.BytesPerToken(*job_.weights)) /
                                                        hardware_.bandwidth;
}

void DevicePlanner::Whole(DevicePlan& plan) const {
  plan.memory = MemoryOf({0, config_.layers}, plan);
  for (int rank = 0; rank < plan.devices; ++rank)
    plan.sent += static_cast<double>(MainJobBytes({rank, static_cast<int>(plan.devices)}, job_, outline_));
}

void DevicePlanner::Split(DevicePlan& plan) const {
  plan.stream_bytes = kFloat * config_.hidden;
  int64_t collecting = 0;     // stages
  double window_streams = 0;  // streams of each window token that are sent, over all variants
  for (const ModelShare& share : CutModel(config_, plan_, plan.stages)) {
    const PlannedMemory memory = MemoryOf(share, plan);
    if (memory.most() > plan.memory.most()) plan.memory = memory;
    if (share.begin < outline_.tapped) ++collecting;
    if (share.begin == 0) continue;
    // The shared blocks' stream crosses every border. The original continues before the first removed layer, and the
    // other variants continue after the first removed run.
    window_streams += 1;
    if (job_.variants > 1 && share.begin > outline_.shared) window_streams += 1;
    if (share.begin > outline_.after) window_streams += static_cast<double>(job_.variants - 1);
  }
  // Tokens, once for every stage that takes their stream over.
  const auto fitted = static_cast<double>(outline_.fit.tokens());
  const double collected = fitted + static_cast<double>(outline_.heldout.tokens());
  const auto borders = static_cast<double>(plan.stages - 1);
  double streams = window_streams * static_cast<double>(outline_.windows.tokens()) +
                   borders * static_cast<double>(job_.variants * job_.decoded);
  if (outline_.selects) streams += borders * fitted;
  if (outline_.collected > 0 && !outline_.loads) {
    streams += static_cast<double>(plan.passes * (collecting - 1)) * collected;
    const int64_t groups = plan.devices / plan.stages;
    plan.sent += static_cast<double>(outline_.collected) * static_cast<double>(groups - 1) /
                 static_cast<double>(groups) *
                 static_cast<double>(RowsBytes(outline_.fit.tokens() + outline_.heldout.tokens()));
  }
  plan.sent += streams * static_cast<double>(plan.stream_bytes);
}

DevicePlan DevicePlanner::On(int64_t devices, int64_t stages) const {
  DevicePlan plan;
  plan.devices = devices;
  plan.stages = stages;
  if (devices % stages != 0) {
    plan.why_not = fmt::format("{} is no multiple of --split {}", devices, stages);
  } else if (stages > config_.layers + 1) {
    plan.why_not = fmt::format("the model has {} blocks and a head", config_.layers);
  } else if (stages > 1) {
    plan.why_not = outline_.no_split;
  }
  if (!plan.why_not.empty()) return plan;
  stages == 1 ? Whole(plan) : Split(plan);
  if (plan.memory.most() > hardware_.memory) plan.why_not = "it does not fit into the memory of a device";
  SetSeconds(plan);
  return plan;
}

DevicePlan DevicePlanner::On(int64_t devices) const {
  DevicePlan best = On(devices, 1);
  const int64_t most = outline_.no_split.empty() ? std::min(devices, config_.layers + 1) : 1;
  for (int64_t stages = 2; stages <= most && !best.why_not.empty(); ++stages) {
    if (devices % stages != 0) continue;
    DevicePlan plan = On(devices, stages);
    // If none has room, the one that needs the least.
    if (plan.why_not.empty() || plan.memory.most() < best.memory.most()) best = std::move(plan);
  }
  return best;
}

}  // namespace shiftrt
