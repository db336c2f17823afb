// SPDX-License-Identifier: Apache-2.0
// Baseline: h = h W + b, fitted to the block's output and truncated as such. Returned as a full A = W - I, whatever the
// rank of W.
#include "shift/corrections/corrections.h"
#include "shift/fit/convert.h"

namespace shiftrt {

namespace {

// h W + b as h + h (W - I) + b.
std::shared_ptr<const Lra> AsResidual(const Context& context, const Lra& affine) {
  Matrix<double> a = DenseMap(context, affine);
  for (int64_t i = 0; i < a.rows(); ++i) a(i, i) -= 1.0;
  auto lra = std::make_shared<Lra>();
  lra->a = Converted<float>(a);
  lra->b = affine.b.Clone();
  return lra;
}

}  // namespace

FittedSites FitGenericAffine(const FitInput& input) {
  const auto& [job, sites, sums, options, projection, before] = input;
  std::vector<SiteSums> outputs;
  outputs.reserve(sums.size());
  for (const SiteSums* site : sums)
    outputs.emplace_back(site->site, site->fit.OntoOutputs(), site->heldout.OntoOutputs());
  std::vector<const SiteSums*> onto;
  onto.reserve(outputs.size());
  for (const SiteSums& site : outputs) onto.push_back(&site);
  FittedSites fitted = FitSites(job.context, onto, options, job.progress);
  for (size_t i = 0; i < sums.size(); ++i) {
    fitted.adapters[i] = AsResidual(job.context, *fitted.adapters[i]);
    const SiteReport measured = MeasureSite(job.context, *sums[i], *fitted.adapters[i]);
    fitted.reports[i].r2_fit = measured.r2_fit;
    fitted.reports[i].r2_heldout = measured.r2_heldout;
  }
  return fitted;
}

}  // namespace shiftrt
