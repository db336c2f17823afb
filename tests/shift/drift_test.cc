// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/drift.h"

#include <algorithm>

#include "runtime/linalg/linalg.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

class Drift : public test::SmallModel {
 protected:
  static std::vector<DepthPlan> Plans() {
    const std::vector<int64_t> two = {2, 4}, one = {3};
    return {DepthPlan::Original(kLayers), DepthPlan::Pruned(kLayers, two), DepthPlan::Pruned(kLayers, one)};
  }
  DriftReport Measured(int64_t shown = 250) {
    NoProgress progress;
    return MeasureDrift(context_, model_.weights, Plans(), calibration_.heldout, progress, {shown});
  }
  // The stream that block `depth` reads (kLayers: the final norm), all tokens.
  std::vector<std::vector<double>> StreamAt(const DepthPlan& plan, int64_t depth) {
    std::vector<std::vector<double>> rows;
    std::vector<Tap> taps;
    taps.push_back({depth, TapPoint::kInput, [&](const Rows& rows_there, const Batch&) {
                      const MatrixView<const float> h = rows_there.host();
                      for (int64_t t = 0; t < h.rows; ++t) rows.emplace_back(h.row(t), h.row(t) + h.cols);
                    }});
    Decoder decoder(context_, model_.weights, plan, std::move(taps));
    for (const Batch& batch : calibration_.heldout) decoder.Forward(batch);
    return rows;
  }
};

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST_F(Drift, ComparesTheStreamsDepthByDepth) {
  const DriftReport drift = Measured();
  const std::vector<int64_t> depths = {0, 1, 5, 6};  // what all three run, and the end
  ASSERT_EQ(drift.models.size(), 3u);
  for (size_t p = 0; p < 3; ++p) {
    ASSERT_EQ(drift.models[p].size(), depths.size());
    for (size_t d = 0; d < depths.size(); ++d) {
      const DriftPoint& point = drift.models[p][d];
      EXPECT_EQ(point.depth, depths[d]);
      const auto original = StreamAt(Plans()[0], depths[d]), h = StreamAt(Plans()[p], depths[d]);
      double cosines = 0;
      std::vector<double> norms;
      for (size_t t = 0; t < h.size(); ++t) {
        cosines += Dot(h[t], original[t]) / std::sqrt(Dot(h[t], h[t]) * Dot(original[t], original[t]));
        norms.push_back(std::sqrt(Dot(h[t], h[t]) / kWidth));
      }
      std::sort(norms.begin(), norms.end());
      EXPECT_NEAR(point.cosine, cosines / static_cast<double>(h.size()), 1e-12);
      EXPECT_EQ(point.norm, norms[norms.size() / 2]);
    }
  }
  for (const DriftPoint& point : drift.models[0]) EXPECT_NEAR(point.cosine, 1, 1e-12);
  EXPECT_NEAR(drift.models[1][1].cosine, 1, 1e-12);  // nothing is missing before layer 1
  EXPECT_LT(drift.models[1][3].cosine, 0.9999);
}

// Against an eigendecomposition of the covariance over the coordinates, the way the definition goes.
TEST_F(Drift, ProjectsOnTheTwoDirectionsOfMostVariance) {
  const DriftReport drift = Measured(64);
  const int64_t tokens = 128, every = 2, each = tokens / every, count = 3 * each;
  Matrix<double> x(count, kWidth);
  int64_t row = 0;
  for (const DepthPlan& plan : Plans()) {
    const auto h = StreamAt(plan, kLayers);
    for (int64_t t = 0; t < tokens; t += every, ++row)
      for (int64_t j = 0; j < kWidth; ++j) x(row, j) = h[t][j] / std::sqrt(Dot(h[t], h[t]) / kWidth);
  }
  for (int64_t j = 0; j < kWidth; ++j) {
    double mean = 0;
    for (int64_t i = 0; i < count; ++i) mean += x(i, j) / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) x(i, j) -= mean;
  }
  Matrix<double> covariance = Matrix<double>::Zeros(kWidth, kWidth);
  linalg::Gemm(context_, true, false, 1.0, x.view(), x.view(), 0.0, covariance.view());
  const auto solver = linalg::MakeHostSolver(context_);
  const linalg::ArrayPtr there = solver->Uploaded(covariance.view());
  solver->Eigen(*there);
  const Matrix<double> vectors = solver->Downloaded(*there);  // in rows, the largest last
  for (int64_t k = 0; k < 2; ++k) {
    double same = 0, opposite = 0, size = 0;
    for (int64_t i = 0; i < count; ++i) {
      double expected = 0;
      for (int64_t j = 0; j < kWidth; ++j) expected += x(i, j) * vectors(kWidth - 1 - k, j);
      const double found = drift.components[i / each][i % each][k];
      same += (found - expected) * (found - expected);
      opposite += (found + expected) * (found + expected);
      size += expected * expected;
    }
    EXPECT_LT(std::min(same, opposite), 1e-16 * size);  // the sign of a direction means nothing
  }
}

// Each model has fewer points if there are many models: t-SNE takes 2,000 together.
TEST_F(Drift, FollowsManyModels) {
  NoProgress progress;
  const std::vector<DepthPlan> plans(9, Plans().front());
  std::vector<Batch> batches;
  for (int64_t tokens = 0; tokens < 1000; tokens += calibration_.heldout.front().size())
    batches.push_back(calibration_.heldout.front());
  const DriftReport drift =
      MeasureDrift(context_, model_.weights, plans, batches, progress, {.count = 100'000, .steps = 1});
  ASSERT_EQ(drift.neighbours.size(), plans.size());
  for (const auto& points : drift.neighbours) {
    EXPECT_GT(points.size(), size_t{200});
    EXPECT_LE(points.size(), size_t{222});
  }
}

TEST_F(Drift, NeedsTokens) {
  NoProgress progress;
  EXPECT_THROW(MeasureDrift(context_, model_.weights, Plans(), {}, progress), Error);
}

}  // namespace
}  // namespace shiftrt
