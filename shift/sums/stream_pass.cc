#include "shift/sums/stream_pass.h"

#include <algorithm>

#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "shift/fit/factorize.h"
#include "shift/fit/ridge.h"
#include "shift/sums/ridge_feed.h"

namespace shiftrt {

namespace {

// The stream before the last few blocks of one batch, kept because the decoder updates it in place.
class RecentStreams {
 public:
  explicit RecentStreams(int64_t count) : streams_(count) {}
  KeptRows& Before(int64_t layer) { return streams_[layer % std::ssize(streams_)]; }

 private:
  std::vector<KeptRows> streams_;
};

Correctable Correct(const Context& context, const RidgeAccumulator& sums, const RidgeSolution& solution, int64_t rank) {
  const LowRank factors = Factorize(context, sums, solution, rank, Factorization::kReducedRank);
  const double unexplained = 1.0 - RSquared(context, sums, {factors.p.view(), factors.q.view()}, factors.b.view());
  return {MakeLra(factors), unexplained * sums.CenteredDeltaSquares()};
}

class Pass {
 public:
  Pass(const Context& context, std::shared_ptr<const Weights> weights, const StreamWants& wants)
      : context_(context),
        weights_(std::move(weights)),
        wants_(wants),
        tally_(MakeTally(context.WithGpu(0), *weights_)),
        products_(tally_->MakeProducts()) {
    for (int64_t window : wants.windows)
      Check(window >= 1 && window <= Layers(), "a window of {} blocks in a model of {}", window, Layers());
  }

  // Returns the sums of layers begin .. end - 1; with `with_windows` measures the windows of the whole model too.
  // Leaves no trace where it throws.
  std::vector<RidgeAccumulator> Run(const std::vector<Batch>& batches, bool with_windows, int64_t begin, int64_t end,
                                    Progress& progress) {
    std::map<int64_t, InfluenceStatistics> windows;
    for (int64_t window : with_windows ? wants_.windows : std::set<int64_t>())
      windows.emplace(window, InfluenceStatistics(Layers() - window + 1));
    const int64_t longest = windows.empty() ? 0 : windows.rbegin()->first;
    RecentStreams recent(longest + 1);
    std::vector<RidgeAccumulator> sums;
    std::vector<RidgeFeed> feeds;
    for (int64_t layer = begin; layer < end; ++layer) sums.emplace_back(weights_->config.hidden);
    for (int64_t layer = begin; layer < end; ++layer) feeds.emplace_back(*tally_, Site{layer}, sums[layer - begin]);
    std::vector<Tap> taps;
    for (int64_t layer = 0; layer <= (longest > 0 ? Layers() : end - 1); ++layer) {
      taps.push_back({layer, TapPoint::kInput, [&, layer](const Rows& h, const Batch& batch) {
                        recent.Before(layer).Set(h);
                        AddWindows(layer, recent, batch.offsets, windows);
                      }});
      if (layer < begin || layer >= end) continue;
      taps.push_back({layer, TapPoint::kUpdate, [&, layer](const Rows& delta, const Batch& batch) {
                        feeds[layer - begin].Add(recent.Before(layer).rows(), delta, {}, batch.offsets);
                      }});
    }
    Decoder decoder(context_, weights_, DepthPlan::Original(Layers()), std::move(taps));
    int64_t tokens = 0;
    for (const Batch& b : batches) tokens += b.size();
    progress.Begin("selecting layers", tokens);
    for (const Batch& batch : batches) {
      decoder.Forward(batch, true);
      progress.Advance(batch.size());
    }
    progress.End();
    for (RidgeFeed& feed : feeds) feed.Settle();
    findings_.windows.merge(windows);
    return sums;
  }

  // An adapter a rank for each layer whose sums these are.
  void Solve(const std::vector<RidgeAccumulator>& sums, Progress& progress) {
    if (sums.empty()) return;
    progress.Begin("solving", std::ssize(sums));
    for (const RidgeAccumulator& site : sums) {
      const RidgeSolution solution = SolveRidge(context_, site, {});
      for (int64_t rank : wants_.correction_ranks)
        findings_.correctable[rank].push_back(Correct(context_, site, solution, rank));
      progress.Advance(1);
    }
    progress.End();
  }

  StreamFindings Take() { return std::move(findings_); }

 private:
  int64_t Layers() const { return weights_->config.layers; }

  // Every window that ends where block `layer` would begin.
  void AddWindows(int64_t layer, RecentStreams& recent, std::span<const int64_t> offsets,
                  std::map<int64_t, InfluenceStatistics>& windows) {
    for (auto& [window, statistics] : windows) {
      if (layer < window) continue;
      products_->Start(recent.Before(layer - window).rows(), recent.Before(layer).rows());
      statistics.Add(layer - window, products_->Take(), offsets);
    }
  }

  Context context_;
  std::shared_ptr<const Weights> weights_;
  StreamWants wants_;
  std::unique_ptr<Tally> tally_;
  std::unique_ptr<PendingProducts> products_;
  StreamFindings findings_;
};

}  // namespace

StreamFindings PassStream(const Context& context, std::shared_ptr<const Weights> weights,
                          const std::vector<Batch>& batches, const StreamWants& wants, Progress& progress) {
  const ModelConfig& config = weights->config;
  const int64_t layers = config.layers;
  Pass pass(context, std::move(weights), wants);
  if (wants.correction_ranks.empty()) {
    pass.Run(batches, true, 0, 0, progress);
    return pass.Take();
  }
  int64_t group = std::clamp<int64_t>(MemoryForSums(context) / RidgeAccumulator::Bytes(config.hidden), 1, layers);
  for (int64_t begin = 0; begin < layers;) {
    const int64_t end = std::min(begin + group, layers);
    std::vector<RidgeAccumulator> sums;
    try {
      sums = pass.Run(batches, begin == 0, begin, end, progress);
    } catch (const OutOfMemory&) {
      if (end - begin == 1) throw;
      group = (end - begin + 1) / 2;
      continue;
    }
    pass.Solve(sums, progress);
    begin = end;
  }
  return pass.Take();
}

}  // namespace shiftrt
