// SPDX-License-Identifier: Apache-2.0
#include "estimate/devices.h"

#include <algorithm>
#include <numeric>

#include "engine/activations.h"
#include "estimate/messages.h"
#include "kernels/logprob.h"
#include "runtime/check.h"
#include "runtime/processes.h"
#include "shift/sums/collect.h"
#include "shift/sums/ridge_adder.h"

namespace shiftrt {

namespace {

constexpr int64_t kFloat = sizeof(float);
// Copies of a batch's stream that taps keep at most: block influence keeps three places.
constexpr int64_t kKeptStreams = 3;
// Matrices (d, d) in float64 that exist while a place is fitted, LAPACK's work space among them: about.
constexpr int64_t kFitMatrices = 6;

constexpr const char* kNoRoom = "it does not fit into the memory of a device";

int64_t Rounds(int64_t items, int64_t devices) { return (items + devices - 1) / devices; }

}  // namespace

int64_t PipelineTurns(int64_t batches, int64_t stages, int64_t together) {
  return batches + Rounds(batches, std::max<int64_t>(together, 1)) * (stages - 1);
}

int64_t DeviceMemory::most() const {
  return weights + adapters +
         std::max({activations + streams + sums + rows, streams + (sums_stay ? sums : 0) + fit,
                   activations + logits + cache});
}

double DevicePlan::total() const { return std::accumulate(std::begin(seconds), std::end(seconds), 0.0); }

DevicePlanner::DevicePlanner(const MainJob& job, const JobOutline& outline, const Hardware& hardware,
                             const Efficiency& efficiency)
    : job_(job),
      outline_(outline),
      hardware_(hardware),
      efficiency_(efficiency),
      config_(job.weights->config),
      plan_(DepthPlan::Original(config_.layers)),
      dtype_(job.weights->blocks.front().down.dtype) {}

// Places that may be collected on a device with these blocks: all that are removed may be its own.
int64_t DevicePlanner::Collected(const ModelShare& share) const {
  if (outline_.collected == config_.layers || outline_.removed.empty()) {
    const int64_t most = (share.end - share.begin) * (outline_.halves ? 2 : 1);
    return std::min(outline_.collected, most);
  }
  const bool each = job_.shift.correction->per_block() && !job_.shift.span;
  int64_t places = 0;
  for (const Site& site : each ? SitesOf(outline_.removed) : RunsOf(outline_.removed))
    places += share.Has(site.last()) ? 1 : 0;
  return std::min(places, outline_.collected);
}

double DevicePlanner::Link(int64_t devices) const {
  return (devices <= hardware_.per_host ? hardware_.host_link : hardware_.network_link) * efficiency_.links;
}

// A pass over one batch: bound by the products, or by reading the weights once.
double DevicePlanner::PassSeconds(const ModelShare& share, const Sequences& batch, int64_t head_rows) const {
  if (share.begin >= share.end && head_rows == 0) return 0;
  double flops = head_rows > 0 ? HeadFlops(config_, head_rows) : 0;
  for (int64_t layer = share.begin; layer < share.end; ++layer) flops += BlockFlops(*job_.weights, layer, batch);
  const auto bytes = static_cast<double>(WeightBytes(config_, plan_, share, dtype_));
  return std::max(flops / (hardware_.Peak(dtype_) * efficiency_.model),
                  bytes / (hardware_.bandwidth * efficiency_.memory));
}

// A message with the rows of one place.
int64_t DevicePlanner::RowsBytes(int64_t tokens) const {
  return RidgeAdder::RowsBytes(tokens, config_.hidden, config_.hidden, !job_.shift.weighting.uniform());
}

double DevicePlanner::SumSeconds(int64_t places, int64_t tokens) const {
  return static_cast<double>(places) * RidgeSumsFlops(config_.hidden, config_.hidden, tokens) /
         (hardware_.double_peak * efficiency_.sums);
}

// Of one place.
double DevicePlanner::FitSeconds(Step step) const {
  if (outline_.places == 0) return 0;
  return FlopsOf(job_, outline_, step).fits / static_cast<double>(outline_.places) /
         (hardware_.double_peak * efficiency_.fits);
}

// Sets the plan's passes and its sums on the host, too.
DeviceMemory DevicePlanner::MemoryOf(const ModelShare& share, DevicePlan& plan) const {
  const int64_t tokens = std::max(outline_.calibration_batch(), outline_.window_batch());
  const int64_t d = config_.hidden, groups = plan.devices / plan.stages;
  DeviceMemory memory;
  memory.weights = WeightBytes(config_, plan_, share, dtype_);
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
  memory.cache = CheckedProduct({job_.positions, KvBytesPerPosition(config_, own, cached)});
  if (outline_.places > 0) memory.fit = CheckedProduct({kFitMatrices, d, d, int64_t{sizeof(double)}});
  // In sequence there are the sums of one place at a time, and the streams of all batches of the device.
  const bool walks = plan.stages == 1 && outline_.in_sequence();
  const int64_t collected = walks ? std::min<int64_t>(1, Collected(share)) : Collected(share);
  // Each place is added up by one of the groups. In the memory of hosts, groups of one have the sums of all places.
  const int64_t owned = Rounds(collected, groups);
  const int64_t places = plan.stages > 1 || hardware_.gpu ? owned : collected;
  if (places == 0 || outline_.loads) return memory;
  if (walks) {
    const int64_t walking = outline_.mode == Calibration::kDrift ? 2 : 1;
    memory.streams =
        CheckedProduct({walking, Rounds(outline_.fit.tokens() + outline_.heldout.tokens(), groups), kFloat, d});
  }

  // On a CPU the sums of fitted and of held-out tokens are there at the same time. A GPU needs room for one after the
  // other, with both on its host; it keeps both where it has much more room (linalg::Solver::MayStay).
  int64_t at_once = places;
  if (hardware_.gpu) {
    const int64_t room = hardware_.memory - memory.weights - memory.activations - memory.streams;
    while (at_once > 1 && CheckedProduct({at_once, RidgeSums::Bytes(d)}) > room) at_once = (at_once + 1) / 2;
    memory.sums = CheckedProduct({at_once, RidgeSums::Bytes(d)});
    plan.host_sums =
        std::max(plan.host_sums, CheckedProduct({plan.stages > 1 ? owned : collected, SiteSums::Bytes(d)}));
  } else {
    Context limited;
    limited.memory = job_.memory > 0 ? job_.memory : std::max<int64_t>(1, (hardware_.memory - memory.weights) / 4 * 3);
    at_once = std::clamp<int64_t>(SitesInMemory(limited, d), 1, places);
    memory.sums = CheckedProduct({at_once, SiteSums::Bytes(d)});
  }
  if (groups > 1) {
    // Of the places of one pass over the text. A GPU that adds up has the rows of all groups at the same time.
    const int64_t own = std::min(collected, places == owned ? at_once * groups : at_once);
    const int64_t others = hardware_.gpu ? at_once * (groups - 1) : 0;
    memory.rows = CheckedProduct({own + others, RowsBytes(outline_.calibration_batch())});
  }
  plan.passes = std::max(plan.passes, Rounds(places, at_once));
  return memory;
}

double DevicePlanner::SentBetweenWhole(int64_t devices) const {
  double sent = 0;
  for (int rank = 0; rank < devices; ++rank)
    sent += static_cast<double>(MainJobBytes({rank, static_cast<int>(devices)}, job_, outline_));
  return sent;
}

DevicePlan DevicePlanner::Whole(int64_t devices) const {
  DevicePlan plan;
  plan.devices = devices;
  const ModelShare all = {0, config_.layers};
  plan.memory = MemoryOf(all, plan);
  if (plan.memory.most() > hardware_.memory) plan.why_not = kNoRoom;

  const Sequences batch = {outline_.calibration.samples_per_batch, outline_.fit.length};
  const double pass = PassSeconds(all, batch, 0), link = Link(devices);
  const bool walks = outline_.in_sequence();
  const double tapped = PassSeconds({0, outline_.tapped}, batch, 0) + PassSeconds({0, outline_.again}, batch, 0);
  const int64_t d = config_.hidden, n = devices, k = outline_.collected;
  const auto seconds = [&](Step step) -> double& { return plan.seconds[static_cast<size_t>(step)]; };
  if (outline_.selects)
    seconds(Step::kSelect) = static_cast<double>(Rounds(outline_.calibration.fit_batches, n)) * pass;
  if (k > 0 && !outline_.loads) {
    const int64_t rounds =
        Rounds(outline_.calibration.fit_batches, n) + Rounds(outline_.calibration.heldout_batches, n);
    // Each adds up, for the places that it owns, the batches of all. In sequence one adds up while the others wait.
    const int64_t added = walks ? k * n : Rounds(k, n) * n;
    double round = tapped, shared = 0;
    if (n > 1) {
      const auto rows = static_cast<double>(RowsBytes(batch.tokens()));
      const double sent = static_cast<double>(k) * static_cast<double>(n - 1) / static_cast<double>(n) * rows;
      round = std::max(tapped, sent / link);  // messages travel while the process computes
      shared = 2 * static_cast<double>(k) * static_cast<double>(RidgeAdder::SharedBytes(d, d)) / link;
    }
    seconds(Step::kCalibrate) =
        static_cast<double>(rounds) * (static_cast<double>(plan.passes) * round + SumSeconds(added, batch.tokens())) +
        2 * shared;
  }
  const auto fits = static_cast<double>(walks ? outline_.places : Rounds(outline_.places, n));
  seconds(Step::kSolve) = fits * FitSeconds(Step::kSolve);
  seconds(Step::kReduce) = fits * FitSeconds(Step::kReduce);
  const Sequences windows = {outline_.windows_per_batch, outline_.windows.length};
  seconds(Step::kEvaluate) = static_cast<double>(job_.variants * Rounds(outline_.window_batches(), n)) *
                             PassSeconds(all, windows, windows.count * (windows.length - 1));
  seconds(Step::kDecode) = static_cast<double>(job_.variants * job_.decoded) *
                           static_cast<double>(plan_.BytesPerToken(*job_.weights)) /
                           (hardware_.bandwidth * efficiency_.memory);
  plan.sent = SentBetweenWhole(n);
  return plan;
}

DevicePlan DevicePlanner::Split(int64_t devices, int64_t stages) const {
  DevicePlan plan;
  plan.devices = devices;
  plan.stages = stages;
  const int64_t groups = devices / stages;
  const std::vector<ModelShare> shares = CutModel(config_, plan_, stages);
  const Sequences batch = {outline_.calibration.samples_per_batch, outline_.fit.length};
  const Sequences windows = {outline_.windows_per_batch, outline_.windows.length};
  plan.stream_bytes = kFloat * config_.hidden;
  const double link = Link(devices), hop = static_cast<double>(plan.stream_bytes) / link;  // of a token
  // A turn of the slowest stage: of a pass, of one that collects sums, the same with the sums, and of an evaluation.
  double pass = 0, tapped = 0, summed = 0, scored = 0;
  int64_t most_places = 0, collecting = 0;  // stages
  for (const ModelShare& share : shares) {
    const DeviceMemory memory = MemoryOf(share, plan);
    if (memory.most() > plan.memory.most()) plan.memory = memory;
    const int64_t collected = Collected(share), owned = Rounds(collected, groups);
    most_places = std::max(most_places, std::min(owned, outline_.places));
    const int64_t head_rows = share.last ? windows.count * (windows.length - 1) : 0;
    const double passed = share.last ? 0 : hop;
    // Messages travel while a stage computes.
    const double rows = static_cast<double>(collected) * static_cast<double>(groups - 1) / static_cast<double>(groups) *
                        static_cast<double>(RowsBytes(batch.tokens())) / link;
    const double travel = passed * static_cast<double>(batch.tokens());
    pass = std::max({pass, PassSeconds(share, batch, 0), travel});
    if (share.begin < outline_.tapped) {
      ModelShare used = share;
      used.end = std::min(used.end, outline_.tapped);
      const double alone = PassSeconds(used, batch, 0);
      tapped = std::max({tapped, alone, travel});
      summed = std::max({summed, alone + SumSeconds(owned * groups, batch.tokens()), travel + rows});
      ++collecting;
    }
    scored = std::max({scored, PassSeconds(share, windows, head_rows), passed * static_cast<double>(windows.tokens())});
  }
  if (plan.memory.most() > hardware_.memory) plan.why_not = kNoRoom;

  const auto seconds = [&](Step step) -> double& { return plan.seconds[static_cast<size_t>(step)]; };
  const int64_t together = Processes::RoundsTogether(stages);
  double waits = 0;
  const auto add = [&](Step step, int64_t batches, int64_t wait_after, double slowest) {
    const int64_t used = step == Step::kCalibrate ? collecting : stages;
    const int64_t all = PipelineTurns(Rounds(batches, groups), used, wait_after);
    seconds(step) += static_cast<double>(all) * slowest;
    waits += static_cast<double>(all - Rounds(batches, groups)) * slowest;
  };
  const CalibrationCounts& calibration = outline_.calibration;
  double streams = 0;  // tokens, once for every stage that takes them over
  if (outline_.selects) {
    add(Step::kSelect, calibration.fit_batches, together, pass);
    streams += static_cast<double>(stages - 1) * static_cast<double>(outline_.fit.tokens());
  }
  if (outline_.collected > 0 && !outline_.loads) {
    for (const int64_t batches : {calibration.fit_batches, calibration.heldout_batches}) {
      for (int64_t again = 1; again < plan.passes; ++again) add(Step::kCalibrate, batches, together, tapped);
      add(Step::kCalibrate, batches, together, summed);
    }
    const auto tokens = static_cast<double>(outline_.fit.tokens() + outline_.heldout.tokens());
    streams += static_cast<double>(plan.passes * (collecting - 1)) * tokens;
    plan.sent += static_cast<double>(outline_.collected) * static_cast<double>(groups - 1) /
                 static_cast<double>(groups) *
                 static_cast<double>(RowsBytes(outline_.fit.tokens() + outline_.heldout.tokens()));
  }
  seconds(Step::kSolve) = static_cast<double>(most_places) * FitSeconds(Step::kSolve);
  seconds(Step::kReduce) = static_cast<double>(most_places) * FitSeconds(Step::kReduce);
  for (int64_t variant = 0; variant < job_.variants; ++variant)
    add(Step::kEvaluate, outline_.window_batches(), outline_.window_batches(), scored);
  streams +=
      static_cast<double>(job_.variants * (stages - 1)) * static_cast<double>(outline_.windows.tokens() + job_.decoded);
  const double busy = seconds(Step::kSelect) + seconds(Step::kCalibrate) + seconds(Step::kEvaluate);
  plan.idle = busy > 0 ? waits / busy : 0;
  // One token at a time, in one stage after another.
  const double read =
      static_cast<double>(plan_.BytesPerToken(*job_.weights)) / (hardware_.bandwidth * efficiency_.memory);
  seconds(Step::kDecode) =
      static_cast<double>(job_.variants * job_.decoded) * (read + static_cast<double>(stages - 1) * hop);
  plan.sent += streams * static_cast<double>(plan.stream_bytes);
  return plan;
}

DevicePlan DevicePlanner::On(int64_t devices, int64_t stages) const {
  if (stages == 1) return Whole(devices);
  const bool possible = devices % stages == 0 && stages <= config_.layers + 1;
  if (possible && outline_.no_split.empty()) return Split(devices, stages);
  DevicePlan plan;
  plan.devices = devices;
  plan.stages = stages;
  plan.why_not = possible                ? outline_.no_split
                 : devices % stages != 0 ? fmt::format("{} is no multiple of --split {}", devices, stages)
                                         : fmt::format("the model has {} blocks and a head", config_.layers);
  return plan;
}

DevicePlan DevicePlanner::On(int64_t devices) const {
  DevicePlan best = On(devices, 1);
  const int64_t most = outline_.no_split.empty() ? std::min(devices, config_.layers + 1) : 1;
  for (int64_t stages = 2; stages <= most; ++stages) {
    if (devices % stages != 0) continue;
    DevicePlan plan = On(devices, stages);
    // Where none has room, the one that needs the least.
    const bool better = plan.why_not.empty() != best.why_not.empty() ? plan.why_not.empty()
                        : plan.why_not.empty()                       ? plan.total() < best.total()
                                                                     : plan.memory.most() < best.memory.most();
    if (better) best = std::move(plan);
  }
  return best;
}

}  // namespace shiftrt
