// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/loss_gradients.h"

#include <algorithm>
#include <vector>

#include "engine/gradients.h"

namespace shiftrt {

void VisitLossGradients(const ShiftJob& job, std::span<const Batch> batches, std::span<const int64_t> layers,
                        const GradientSink& sink) {
  GradientEngine engine(job.context, job.model.weights, DepthPlan::Original(job.layers()));
  for (const Batch& batch : batches) {
    const GradientTap tap{static_cast<size_t>(*std::min_element(layers.begin(), layers.end())),
                          [&](size_t layer, const Rows& gradient) {
                            if (std::find(layers.begin(), layers.end(), layer) == layers.end()) return;
                            const HostRows host = gradient.ToHost();
                            const Matrix<float> g(gradient.count(), gradient.hidden());
                            std::copy_n(host.view().data, g.size(), g.data());
                            sink(static_cast<int64_t>(layer), batch, g);
                          }};
    engine.Step(batch, {}, 1.0, {}, &tap);
    job.progress.Advance(batch.size());
  }
}

GradientSizes CollectGradientSizes(const ShiftJob& job, std::span<const int64_t> layers) {
  GradientSizes all;
  TokenSizes* text = &all.fit;
  const auto keep = [&](int64_t layer, const Batch&, const Matrix<float>& g) {
    // The loss of a batch is a mean over its tokens, so that gradients of a longer batch are smaller.
    const double scale = static_cast<double>(g.rows()) * static_cast<double>(g.rows()) / static_cast<double>(g.cols());
    std::vector<float> sizes(g.rows());
    for (int64_t t = 0; t < g.rows(); ++t) {
      double squares = 0;
      for (int64_t j = 0; j < g.cols(); ++j) squares += static_cast<double>(g(t, j)) * g(t, j);
      sizes[t] = static_cast<float>(squares * scale);
    }
    text->Add(layer, std::move(sizes));
  };
  job.progress.Begin("gradients of the loss", job.calibration.fit_tokens + job.calibration.heldout_tokens);
  VisitLossGradients(job, job.calibration.fit, layers, keep);
  text = &all.heldout;
  VisitLossGradients(job, job.calibration.heldout, layers, keep);
  job.progress.End();
  all.Scale();
  return all;
}

}  // namespace shiftrt
