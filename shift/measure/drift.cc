// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/drift.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/solver.h"
#include "runtime/median.h"
#include "shift/measure/tsne.h"
#include "shift/sums/pass.h"

namespace shiftrt {

namespace {

// The layers whose attention every plan runs, and the place after the last. An MLP alone stands after the place of the
// attention.
std::vector<int64_t> SharedDepths(const std::vector<DepthPlan>& plans, int64_t layers) {
  std::vector<int64_t> runs(layers, 0);
  for (const DepthPlan& plan : plans)
    for (const BlockStage* block : plan.Blocks())
      if (RunsAttention(block->halves)) ++runs[block->layer];
  std::vector<int64_t> depths;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (runs[layer] == static_cast<int64_t>(plans.size())) depths.push_back(layer);
  depths.push_back(layers);
  return depths;
}

Matrix<float> Copied(MatrixView<const float> h) {
  Matrix<float> copy(h.rows, h.cols);
  for (int64_t i = 0; i < h.rows; ++i) std::copy_n(h.row(i), h.cols, copy.row(i));
  return copy;
}

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Measurements of one plan at one depth, over all batches.
struct Seen {
  std::vector<double> norms;
  double cosines = 0;

  void Add(MatrixView<const float> h, MatrixView<const float> original) {
    for (int64_t t = 0; t < h.rows; ++t) {
      const double squares = Dot(h.row(t), h.row(t), h.cols);
      const double both = std::sqrt(squares * Dot(original.row(t), original.row(t), h.cols));
      norms.push_back(std::sqrt(squares / static_cast<double>(h.cols)));
      cosines += both > 0 ? Dot(h.row(t), original.row(t), h.cols) / both : 1.0;
    }
  }
};

// Rows scaled to a root mean square of 1, and centred together.
Matrix<double> Normalised(const std::vector<std::vector<float>>& rows, int64_t hidden) {
  const auto count = static_cast<int64_t>(rows.size());
  Matrix<double> out(count, hidden);
  for (int64_t i = 0; i < count; ++i) {
    const double squares = Dot(rows[i].data(), rows[i].data(), hidden);
    const double scale = squares > 0 ? std::sqrt(static_cast<double>(hidden) / squares) : 0.0;
    for (int64_t j = 0; j < hidden; ++j) out(i, j) = scale * rows[i][j];
  }
  for (int64_t j = 0; j < hidden; ++j) {
    double mean = 0;
    for (int64_t i = 0; i < count; ++i) mean += out(i, j) / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) out(i, j) -= mean;
  }
  return out;
}

// Coordinates of the rows on their two leading principal directions: with X X' = U S U', U_k sqrt(S_k).
Matrix<double> LeadingPlane(const Context& context, const Matrix<double>& x) {
  const auto n = static_cast<double>(x.rows()), width = static_cast<double>(x.cols());
  return linalg::WithSolver(context, 2 * n * n * width + 4.0 / 3.0 * n * n * n, n * width, [&](linalg::Solver& solver) {
    const linalg::ArrayPtr rows = solver.Uploaded(x.view()), products = solver.Product({*rows}, {*rows, true});
    const auto eigen = linalg::LeadingEigen(solver, *products, std::min<int64_t>(2, x.rows()));
    const Matrix<double> vectors = solver.Downloaded(*eigen.vectors);
    const std::vector<double> values = eigen.Values();
    Matrix<double> plane = Matrix<double>::Zeros(x.rows(), 2);
    for (int64_t k = 0; k < vectors.rows(); ++k) {
      const double scale = std::sqrt(std::max(0.0, values[values.size() - 1 - k]));
      for (int64_t i = 0; i < x.rows(); ++i) plane(i, k) = scale * vectors(k, i);
    }
    return plane;
  });
}

// Follows one plan's stream. The first plan's probe keeps the streams of a batch for the probes of the others, which
// run after it.
class DriftProbe : public Probe {
 public:
  DriftProbe(const std::vector<int64_t>& depths, int64_t every, std::vector<Matrix<float>>& original, bool is_original)
      : seen(depths.size()), depths_(depths), every_(every), original_(original), is_original_(is_original) {}
  void Begin(Collector&, int64_t, int64_t) override {}
  std::vector<Tap> Taps() override {
    std::vector<Tap> taps;
    for (size_t d = 0; d < depths_.size(); ++d)
      taps.push_back({depths_[d], TapPoint::kInput, [this, d](const Rows& rows, const Batch&) { Take(d, rows); }});
    return taps;
  }
  void Complete(int64_t) override {}

  std::vector<Seen> seen;                // by depth
  std::vector<std::vector<float>> last;  // the final norm's inputs at every `every`th token

 private:
  void Take(size_t d, const Rows& rows) {
    const HostRows h = rows.ToHost();
    if (is_original_) original_[d] = Copied(h.view());
    seen[d].Add(h.view(), original_[d].view());
    if (d + 1 < depths_.size()) return;
    for (int64_t t = (every_ - before_ % every_) % every_; t < rows.count(); t += every_)
      last.emplace_back(h.view().row(t), h.view().row(t) + h.view().cols);
    before_ += rows.count();
  }

  const std::vector<int64_t>& depths_;
  const int64_t every_;
  std::vector<Matrix<float>>& original_;
  const bool is_original_;
  int64_t before_ = 0;  // tokens of the batches before
};

}  // namespace

DriftReport MeasureDrift(const Context& context, std::shared_ptr<const Weights> weights,
                         const std::vector<DepthPlan>& plans, const std::vector<Batch>& batches, Progress& progress,
                         ShownTokens shown) {
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.size();
  Check(tokens > 0 && !plans.empty(), "no tokens or no depth plans to compare");
  const int64_t models = std::ssize(plans), most = kTsnePoints / models;
  Check(most >= 1, "{} models to follow the stream of, at most {}", models, kTsnePoints);
  const int64_t hidden = weights->config.hidden,
                every = std::max({int64_t{1}, tokens / shown.count, (tokens + most - 1) / most});
  const std::vector<int64_t> depths = SharedDepths(plans, weights->config.layers);

  std::vector<Matrix<float>> original(depths.size());
  std::deque<DriftProbe> probes;
  Pass pass(context.WithGpu(0), std::move(weights));
  for (size_t p = 0; p < plans.size(); ++p) pass.Add(plans[p], probes.emplace_back(depths, every, original, p == 0));
  pass.Run("following the stream", batches, progress);

  DriftReport drift;
  std::vector<std::vector<float>> rows;
  for (const DriftProbe& probe : probes) {
    auto& points = drift.models.emplace_back();
    for (size_t d = 0; d < depths.size(); ++d)
      points.push_back({depths[d], Median(probe.seen[d].norms), probe.seen[d].cosines / static_cast<double>(tokens)});
    rows.insert(rows.end(), probe.last.begin(), probe.last.end());
  }
  const Matrix<double> normalised = Normalised(rows, hidden), plane = LeadingPlane(context, normalised),
                       neighbours = Tsne(context, normalised.view(), {.iterations = shown.steps, .seed = shown.seed});
  const auto each = std::ssize(probes.front().last);
  for (size_t p = 0; p < plans.size(); ++p)
    for (const auto& [all, of] : {std::pair(&plane, &drift.components), std::pair(&neighbours, &drift.neighbours)}) {
      auto& points = of->emplace_back();
      for (int64_t i = static_cast<int64_t>(p) * each; i < static_cast<int64_t>(p + 1) * each; ++i)
        points.push_back({(*all)(i, 0), (*all)(i, 1)});
    }
  return drift;
}

}  // namespace shiftrt
