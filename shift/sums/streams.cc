// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/streams.h"

#include <utility>

namespace shiftrt {

namespace {

class StreamProbe : public Probe {
 public:
  StreamProbe(int64_t layer, int64_t batches) : streams(batches), layer_(layer) {}
  bool dealt() const override { return true; }  // each process keeps the streams of its batches
  void Begin(Tally&, int64_t, int64_t) override {}
  void BeginBatch(int64_t batch) override { batch_ = batch; }
  std::vector<Tap> Taps() override {
    return {{layer_, TapPoint::kInput, [this](const Rows& h, const Batch&) { streams[batch_].Set(h); }}};
  }
  void Settle(int64_t) override {}

  std::vector<KeptRows> streams;

 private:
  int64_t layer_, batch_ = 0;
};

}  // namespace

std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress) {
  StreamProbe probe(layer, std::ssize(batches));
  Pass pass(context.WithGpu(0), std::move(weights));
  pass.Add(probe);
  pass.Run(phase, batches, progress);
  return std::move(probe.streams);
}

StartStreams StartStreams::Every(const Context& context, int64_t step) const {
  return {layer, EveryOf(context, fit, step), EveryOf(context, heldout, step)};
}

StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase) {
  const auto of = [&](const std::vector<Batch>& batches) {
    return StreamsBefore(layer, job.context, job.model.weights, batches, phase, job.progress);
  };
  return {layer, of(job.calibration.fit), of(job.calibration.heldout)};
}

}  // namespace shiftrt
