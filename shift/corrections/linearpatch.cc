// SPDX-License-Identifier: Apache-2.0
// LinearPatch (Chen et al., 2025): h becomes H' diag(d) H h in the place of a removed run. H is an orthonormal Hadamard
// matrix, and d_k the mean over sequences of the ratio of the mean absolute values of coordinate k of H h after the
// run and before it, both in the original model. The variant "diag" has H = I.
#include <utility>

#include "runtime/linalg/linalg.h"
#include "shift/corrections/corrections.h"
#include "shift/corrections/hadamard.h"
#include "shift/corrections/scaling.h"

namespace shiftrt {

namespace {

// B diag(scales) B' - I, as an adapter.
std::shared_ptr<const Lra> Patch(const Context& context, const Matrix<double>& basis, std::span<const double> scales) {
  const int64_t d = basis.rows();
  Matrix<double> scaled(d, d);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t k = 0; k < d; ++k) scaled(i, k) = basis(i, k) * scales[k];
  RidgeSolution patch;
  Matrix<double> map(d, d);
  linalg::Gemm(context, false, true, 1.0, scaled.view(), basis.view(), 0.0, map.view());
  for (int64_t i = 0; i < d; ++i) map(i, i) -= 1;
  patch.a = std::move(map);
  patch.b = Matrix<double>::Zeros(1, d);
  return MakeLra(patch);
}

// Measures in the coordinates that `transform` maps a row to, or in the channels of the stream if it is null.
FittedSites FitPatches(const FitInput& input, const MagnitudeProbe::Transform& transform) {
  const int64_t d = input.job.hidden();
  FittedSites fitted;
  const std::vector<std::vector<double>> ratios = MeasureRatios(input, transform, fitted);
  // Row i: the image of the unit vector i.
  Matrix<double> basis = Matrix<double>::Zeros(d, d);
  for (int64_t i = 0; i < d; ++i) {
    basis(i, i) = 1;
    if (transform) transform({basis.row(i), static_cast<size_t>(d)});
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    fitted.adapters.push_back(Patch(input.job.context, basis, ratios[i]));
    fitted.reports[i].rank = d;
  }
  return fitted;
}

}  // namespace

FittedSites FitLinearPatch(const FitInput& input) {
  const Hadamard hadamard(input.job.hidden());
  return FitPatches(input, [&](std::span<double> row) { hadamard.Transform(row); });
}

FittedSites FitLinearPatchDiagonal(const FitInput& input) { return FitPatches(input, nullptr); }

}  // namespace shiftrt
