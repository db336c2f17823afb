// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/loss_gradients.h"

#include <algorithm>
#include <vector>

#include "engine/gradient_ops.h"
#include "engine/gradients.h"

namespace shiftrt {

namespace {

class LossGradients {
 public:
  LossGradients(const ShiftJob& job, std::span<const int64_t> layers, const GradientSink& sink)
      : layers_(job.layers()),
        hidden_(job.hidden()),
        heard_(layers),
        lowest_(*std::min_element(layers.begin(), layers.end()) + 1),
        sink_(sink),
        engine_(job.context, job.model.weights, DepthPlan::Original(job.layers())) {}

  void Run(const Batch& batch) {
    // The streams before the stages from the lowest one on, and behind the last.
    const int64_t size = batch.size() * hidden_;
    const std::shared_ptr<float> streams = engine_.Allocate((layers_ - lowest_ + 1) * size),
                                 memory = engine_.Allocate(size);
    const auto stream = [&](int64_t stage) {
      return MatrixView<float>(streams.get() + (stage - lowest_) * size, batch.size(), hidden_);
    };
    const MatrixView<float> gradient(memory.get(), batch.size(), hidden_);
    engine_.Embed(batch, stream(lowest_));
    for (int64_t stage = 0; stage < layers_; ++stage) {
      const MatrixView<float> from = stream(std::max(stage, lowest_)), to = stream(std::max(stage + 1, lowest_));
      if (from.data != to.data) engine_.ops().Copy(from, to);
      engine_.Forward(static_cast<size_t>(stage), batch, to);
    }
    engine_.Head(batch, {}, 1.0, stream(layers_), gradient);
    Hear(layers_ - 1, batch, gradient);
    for (int64_t stage = layers_ - 1; stage >= lowest_; --stage) {
      engine_.Backward(static_cast<size_t>(stage), batch, stream(stage), gradient);
      Hear(stage - 1, batch, gradient);
    }
  }

 private:
  void Hear(int64_t layer, const Batch& batch, MatrixView<const float> gradient) {
    if (std::find(heard_.begin(), heard_.end(), layer) == heard_.end()) return;
    const Matrix<float> here(gradient.rows, gradient.cols);
    engine_.ops().ToHost(gradient.data, here.span());
    sink_(layer, batch, here);
  }

  const int64_t layers_, hidden_;
  const std::span<const int64_t> heard_;
  const int64_t lowest_;  // stage that runs backwards
  const GradientSink& sink_;
  GradientEngine engine_;
};

}  // namespace

void VisitLossGradients(const ShiftJob& job, std::span<const Batch> batches, std::span<const int64_t> layers,
                        const GradientSink& sink) {
  LossGradients gradients(job, layers, sink);
  for (const Batch& batch : batches) {
    gradients.Run(batch);
    job.progress.Advance(batch.size());
  }
}

std::shared_ptr<const GradientSizes> CollectGradientSizes(const ShiftJob& job, std::span<const int64_t> layers) {
  auto all = std::make_shared<GradientSizes>();
  const auto keep = [&](int64_t layer, const Batch& batch, const Matrix<float>& g) {
    // The loss of a batch is a mean over its tokens, so that gradients of a longer batch are smaller.
    const double scale = static_cast<double>(g.rows()) * static_cast<double>(g.rows()) / static_cast<double>(g.cols());
    std::vector<float> sizes(g.rows());
    for (int64_t t = 0; t < g.rows(); ++t) {
      double squares = 0;
      for (int64_t j = 0; j < g.cols(); ++j) squares += static_cast<double>(g(t, j)) * g(t, j);
      sizes[t] = static_cast<float>(squares * scale);
    }
    all->Set(layer, batch, std::move(sizes));
  };
  job.progress.Begin("gradients of the loss", job.calibration.fit_tokens + job.calibration.heldout_tokens);
  VisitLossGradients(job, job.calibration.fit, layers, keep);
  VisitLossGradients(job, job.calibration.heldout, layers, keep);
  job.progress.End();
  all->Scale();
  return all;
}

}  // namespace shiftrt
