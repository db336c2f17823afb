// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/streams.h"

#include <utility>

namespace shiftrt {

StreamProbe::StreamProbe(std::vector<int64_t> layers, int64_t batches) : layers_(std::move(layers)) {
  streams_.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) streams_.emplace_back(batches);
}

std::vector<Tap> StreamProbe::Taps() {
  std::vector<Tap> taps;
  taps.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i)
    taps.push_back(
        {layers_[i], TapPoint::kInput, [this, i](const Rows& h, const Batch&) { streams_[i][batch_].Set(h); }});
  return taps;
}

std::vector<KeptRows> StreamProbe::Take(int64_t& layer, LaterStreams* deeper) {
  std::vector<KeptRows> taken;
  int64_t deepest = -1;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (layers_[i] > layer && deeper != nullptr) deeper->emplace(layers_[i], std::move(streams_[i]));
    if (layers_[i] > layer || layers_[i] <= deepest) continue;
    deepest = layers_[i];
    taken = std::move(streams_[i]);
  }
  streams_.clear();
  if (deepest >= 0) layer = deepest;
  return taken;
}

std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress) {
  StreamProbe probe({layer}, std::ssize(batches));
  Pass pass(context.WithGpu(0), std::move(weights));
  pass.Add(probe);
  pass.Run(phase, batches, progress);
  return probe.Take(layer);
}

StartStreams StartStreams::Every(const Context& context, int64_t step) const {
  return {layer, EveryOf(context, fit, step), EveryOf(context, heldout, step), {}};
}

StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase) {
  const auto of = [&](const std::vector<Batch>& batches) {
    return StreamsBefore(layer, job.context, job.model.weights, batches, phase, job.progress);
  };
  return {layer, of(job.calibration.fit), of(job.calibration.heldout), {}};
}

}  // namespace shiftrt
