#include "shift/stream_pass.h"

#include <algorithm>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "shift/factorize.h"
#include "shift/ridge.h"

namespace shiftrt {

namespace {

// The stream before the last few blocks of one batch, kept because the decoder updates it in place.
class RecentStreams {
 public:
  RecentStreams(int64_t count, int64_t hidden) : streams_(count), hidden_(hidden) {}

  void Keep(int64_t layer, MatrixView<const float> h) {
    Buffer<float>& stream = streams_[layer % static_cast<int64_t>(streams_.size())];
    stream.Reserve(h.rows * h.cols);
    for (int64_t t = 0; t < h.rows; ++t) std::copy_n(h.row(t), h.cols, stream.data() + t * h.cols);
    rows_ = h.rows;
  }
  MatrixView<const float> Before(int64_t layer) const {
    return {streams_[layer % static_cast<int64_t>(streams_.size())].data(), rows_, hidden_};
  }

 private:
  std::vector<Buffer<float>> streams_;
  int64_t hidden_ = 0, rows_ = 0;
};

Correctable Correct(const Context& context, const RidgeAccumulator& sums, const RidgeSolution& solution, int64_t rank) {
  const LowRank factors = Factorize(context, sums, solution, rank, Factorization::kReducedRank);
  Matrix<double> a(sums.hidden(), sums.hidden());
  linalg::Gemm(context, false, false, 1.0, factors.p.view(), factors.q.view(), 0.0, a.view());
  const double unexplained = 1.0 - RSquared(context, sums, a.view(), factors.b.view());
  return {MakeLra(factors), unexplained * sums.CenteredDeltaSquares()};
}

class Pass {
 public:
  Pass(const Context& context, std::shared_ptr<const Weights> weights, const StreamWants& wants)
      : context_(context), weights_(std::move(weights)), wants_(wants) {
    for (int64_t window : wants.windows) {
      Check(window >= 1 && window <= Layers(), "a window of {} blocks in a model of {}", window, Layers());
      findings_.windows.emplace(window, InfluenceStatistics(Layers() - window + 1));
    }
  }

  // Adapters for layers begin .. end - 1; with `with_windows` the windows of the whole model too.
  void Run(const std::vector<Batch>& batches, bool with_windows, int64_t begin, int64_t end, Progress& progress) {
    const int64_t longest = with_windows && !wants_.windows.empty() ? *wants_.windows.rbegin() : 0;
    RecentStreams recent(longest + 1, weights_->config.hidden);
    std::vector<RidgeAccumulator> sums;
    for (int64_t layer = begin; layer < end; ++layer) sums.emplace_back(weights_->config.hidden);
    const Batch* batch = nullptr;
    std::vector<Tap> taps;
    for (int64_t layer = 0; layer <= (longest > 0 ? Layers() : end - 1); ++layer) {
      taps.push_back({layer, TapPoint::kInput, [&, layer](MatrixView<const float> h) {
                        recent.Keep(layer, h);
                        if (longest > 0) AddWindows(layer, recent, *batch);
                      }});
      if (layer < begin || layer >= end) continue;
      taps.push_back({layer, TapPoint::kUpdate, [&, layer](MatrixView<const float> delta) {
                        sums[layer - begin].Add(context_, recent.Before(layer), delta);
                      }});
    }
    Decoder decoder(context_, weights_, DepthPlan::Original(Layers()), std::move(taps));
    int64_t tokens = 0;
    for (const Batch& b : batches) tokens += b.size();
    progress.Begin("selecting layers", tokens);
    for (const Batch& b : batches) {
      batch = &b;
      decoder.Forward(b, true);
      progress.Advance(b.size());
    }
    progress.End();
    Solve(sums, progress);
  }

  StreamFindings Take() { return std::move(findings_); }

 private:
  int64_t Layers() const { return weights_->config.layers; }

  // Every window that ends where block `layer` would begin.
  void AddWindows(int64_t layer, const RecentStreams& recent, const Batch& batch) {
    for (auto& [window, statistics] : findings_.windows)
      if (layer >= window)
        statistics.Add(layer - window, recent.Before(layer - window), recent.Before(layer), batch.offsets);
  }

  void Solve(std::vector<RidgeAccumulator>& sums, Progress& progress) {
    if (sums.empty()) return;
    progress.Begin("solving", static_cast<int64_t>(sums.size()));
    for (const RidgeAccumulator& site : sums) {
      const RidgeSolution solution = SolveRidge(context_, site, {});
      for (int64_t rank : wants_.correction_ranks)
        findings_.correctable[rank].push_back(Correct(context_, site, solution, rank));
      progress.Advance(1);
    }
    progress.End();
  }

  Context context_;
  std::shared_ptr<const Weights> weights_;
  StreamWants wants_;
  StreamFindings findings_;
};

}  // namespace

StreamFindings PassStream(const Context& context, std::shared_ptr<const Weights> weights,
                          const std::vector<Batch>& batches, const StreamWants& wants, Progress& progress,
                          int64_t memory) {
  const ModelConfig& config = weights->config;
  const int64_t layers = config.layers;
  Pass pass(context, std::move(weights), wants);
  if (wants.correction_ranks.empty()) {
    pass.Run(batches, true, 0, 0, progress);
    return pass.Take();
  }
  const int64_t site_bytes = (2 * config.hidden * config.hidden + 3 * config.hidden + 1) * 8;
  const int64_t group = std::clamp<int64_t>(memory / site_bytes, 1, layers);
  for (int64_t begin = 0; begin < layers; begin += group)
    pass.Run(batches, begin == 0, begin, std::min(begin + group, layers), progress);
  return pass.Take();
}

}  // namespace shiftrt
