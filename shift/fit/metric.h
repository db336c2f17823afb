// SPDX-License-Identifier: Apache-2.0
// The metric in which low-rank adapters are closest to full ones: of all errors of the same size, the loss feels some
// more than others. docs/method.md has the formulas.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "include/shiftrt/recipe.h"
#include "shift/job.h"

namespace shiftrt {

// M = L L', the second moment of dL/dh behind a block, of d coordinates; or its diagonal.
class OutputMetric {
 public:
  // From the sums of g g' (d, d; upper triangle) of gradients g, which need not be scaled: only ratios count. A
  // thousandth of the mean of its diagonal is added to it, because the gradients of some text leave directions
  // unweighted that other text will use. Throws Error for sums that are zero or not finite.
  OutputMetric(const Context& context, MetricKind kind, MatrixView<const double> squares);

  // X (n, d) L.
  Matrix<double> Times(const Context& context, const Matrix<double>& x) const;
  // Y (n, d) L^-1.
  Matrix<double> Over(const Context& context, const Matrix<double>& y) const;

 private:
  std::vector<double> scales_;  // L where it is diagonal
  Matrix<double> root_;         // L otherwise, (d, d), lower triangular
};

// By the last layer of a site, the metric of its output.
using OutputMetrics = std::map<int64_t, OutputMetric>;

// By the layer, the sums over tokens of g g' (d, d; upper triangle), g the gradient of the mean cross entropy with
// respect to the stream behind that block.
using GradientMoments = std::map<int64_t, Matrix<double>>;

// From a pass forwards and a pass backwards of the original model over the fitted calibration text. `layers`: behind
// which blocks.
GradientMoments CollectGradientMoments(const ShiftJob& job, std::span<const int64_t> layers);
std::shared_ptr<const OutputMetrics> MakeMetrics(const Context& context, MetricKind kind,
                                                 const GradientMoments& moments);
// Both in one.
std::shared_ptr<const OutputMetrics> CollectMetrics(const ShiftJob& job, MetricKind kind,
                                                    std::span<const int64_t> layers);

}  // namespace shiftrt
