// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/streams.h"

#include <utility>

namespace shiftrt {

namespace {

class StreamProbe : public Probe {
 public:
  explicit StreamProbe(int64_t layer) : layer_(layer) {}
  bool dealt() const override { return true; }  // each keeps the streams of its batches
  void Begin(Tally&, int64_t, int64_t) override { streams.clear(); }
  std::vector<Tap> Taps() override {
    return {{layer_, TapPoint::kInput, [this](const Rows& h, const Batch&) { streams.emplace_back().Set(h); }}};
  }
  void Settle(int64_t) override {}

  std::vector<KeptRows> streams;

 private:
  int64_t layer_;
};

}  // namespace

std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress) {
  StreamProbe probe(layer);
  Pass pass(context.WithGpu(0), std::move(weights));
  pass.Add(probe);
  pass.Run(phase, batches, progress);
  return std::move(probe.streams);
}

StartStreams StartStreams::Every(size_t step) const {
  StartStreams some{layer, {}, {}};
  for (const auto& [from, to] : {std::pair(&fit, &some.fit), std::pair(&heldout, &some.heldout)})
    for (size_t b = 0; b < from->size(); b += step) to->emplace_back().Set((*from)[b].rows());
  return some;
}

StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase) {
  const auto of = [&](const std::vector<Batch>& batches) {
    return StreamsBefore(layer, job.context, job.model.weights, batches, phase, job.progress);
  };
  return {layer, of(job.calibration.fit), of(job.calibration.heldout)};
}

}  // namespace shiftrt
