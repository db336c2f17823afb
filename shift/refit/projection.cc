// SPDX-License-Identifier: Apache-2.0
#include "shift/refit/projection.h"

#include <utility>

#include "shift/refit/fold.h"

namespace shiftrt {

namespace {

// The change of a bias, (1, d); zeros without one.
Matrix<double> BiasChange(const Projection& projection, const BlockWeights& before, const BlockWeights& after,
                          int64_t hidden) {
  Matrix<double> change = Matrix<double>::Zeros(1, hidden);
  if ((before.*projection.bias).empty()) return change;
  const Matrix<double> from = InFloat64(before.*projection.bias), to = InFloat64(after.*projection.bias);
  for (int64_t j = 0; j < hidden; ++j) change(0, j) = to.data()[j] - from.data()[j];
  return change;
}

// The change that a fit made to the projection, as it is stored.
struct StoredChange {
  StoredChange(const Projection& projection, const BlockWeights& before, const BlockWeights& after)
      : map(ChangeOf(projection, before, after)), bias(BiasChange(projection, before, after, map.cols())) {}
  Matrix<double> map, bias;
};

// `block` with the solution added, and what is known of the fit but its tokens, site and R2.
RefittedBlock Stored(const RidgeSolution& solution, const Projection& projection, const BlockPtr& block) {
  auto folded = std::make_shared<OwnBlock>(block);
  const Matrix<double> weight = InFloat64((*block).*projection.weight);
  const Matrix<double>& a = solution.a.host();
  for (int64_t i = 0; i < weight.rows(); ++i)
    for (int64_t j = 0; j < weight.cols(); ++j) weight(i, j) += a(j, i);
  folded->Replace(projection.weight, weight.span());
  if (!((*block).*projection.bias).empty()) {
    const Matrix<double> bias = InFloat64((*block).*projection.bias);
    for (int64_t j = 0; j < bias.size(); ++j) bias.data()[j] += solution.b(0, j);
    folded->Replace(projection.bias, bias.span());
  }
  RefittedBlock refitted{OwnBlock::Share(std::move(folded)), {}};
  SiteReport& report = refitted.report;
  report.part = projection.name;
  report.Record(solution);
  report.rank = solution.a.cols();
  return refitted;
}

}  // namespace

Matrix<double> ChangeOf(const Projection& projection, const BlockWeights& before, const BlockWeights& after) {
  const Matrix<double> from = InFloat64(before.*projection.weight), to = InFloat64(after.*projection.weight);
  Matrix<double> change(from.cols(), from.rows());
  for (int64_t i = 0; i < from.rows(); ++i)
    for (int64_t j = 0; j < from.cols(); ++j) change(j, i) = to(i, j) - from(i, j);
  return change;
}

RefittedBlock RefitProjection(const Context& context, const SiteSums& sums, const RidgeOptions& options,
                              const Projection& projection, const BlockPtr& block) {
  const bool biased = !((*block).*projection.bias).empty();
  // A fit about means of zero is the fit without a bias.
  const RidgeSums bare = biased ? RidgeSums(0) : sums.fit.WithoutMeans(),
                  bare_heldout = biased ? RidgeSums(0) : sums.heldout.WithoutMeans();
  const RidgeSolution solution =
      SolveRidge(context, biased ? sums.fit : bare, {options.lambda, false}, biased ? &sums.heldout : &bare_heldout);
  RefittedBlock refitted = Stored(solution, projection, block);
  SiteReport& report = refitted.report;
  report.site = sums.site;
  report.tokens = sums.fit.tokens();
  const StoredChange change(projection, *block, *refitted.block);
  report.r2_fit = RSquared(context, sums.fit, change.map.view(), change.bias.view());
  report.r2_heldout = RSquared(context, sums.heldout, change.map.view(), change.bias.view());
  return refitted;
}

}  // namespace shiftrt
