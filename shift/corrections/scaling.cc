// SPDX-License-Identifier: Apache-2.0
#include "shift/corrections/scaling.h"

#include <limits>
#include <numeric>
#include <utility>

#include "models/own_tensors.h"
#include "runtime/stopwatch.h"
#include "shift/refit/fold.h"

namespace shiftrt {

std::vector<std::vector<double>> MeasureRatios(const FitInput& input, const MagnitudeProbe::Transform& transform,
                                               FittedSites& fitted) {
  const ShiftJob& job = input.job;
  std::vector<StreamSpan> spans;
  for (const Site& site : input.sites) spans.push_back({site.layer, site.last() + 1});
  MagnitudeProbe probe(job.context, spans, job.hidden(), transform);
  {
    const Stopwatch watch(fitted.seconds.calibrate);
    Pass pass(job.context, job.model.weights);
    pass.Add(probe);
    pass.Run("calibrating", job.calibration.fit, job.progress);
  }
  std::vector<std::vector<double>> ratios;
  for (size_t i = 0; i < spans.size(); ++i) {
    const std::vector<double>& of_site = ratios.emplace_back(probe.Ratios(i));
    SiteReport& report = fitted.reports.emplace_back();
    report.site = input.sites[i];
    report.tokens = job.calibration.fit_tokens;
    report.r2_fit = report.r2_heldout = std::numeric_limits<double>::quiet_NaN();
    report.scale = std::accumulate(of_site.begin(), of_site.end(), 0.0) / static_cast<double>(of_site.size());
  }
  return ratios;
}

std::vector<BlockStage> DividedAfter(const Weights& weights, const DepthPlan& plan, std::span<const Cut> cuts) {
  std::vector<BlockStage> divided;
  for (const BlockStage* stage : plan.Blocks()) {
    double divisor = 1;
    for (const Cut& cut : cuts)
      if (cut.layer < stage->layer) divisor *= cut.scale;
    if (divisor == 1) continue;
    auto own = std::make_shared<OwnBlock>(weights, *stage);
    ForEachTensor(TensorsOf(weights, *stage), [&](const BlockTensor& row, const TensorView& tensor) {
      if (!row.EndsHalf()) return;
      Matrix<double> values = InFloat64(tensor);
      for (double& value : values.span()) value /= divisor;
      own->Replace(row, values.span());
    });
    BlockStage& replaced = divided.emplace_back(*stage);
    replaced.own = OwnBlock::Share(std::move(own));
  }
  return divided;
}

}  // namespace shiftrt
