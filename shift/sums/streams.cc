// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/streams.h"

namespace shiftrt {

namespace {

class StreamProbe : public Probe {
 public:
  explicit StreamProbe(int64_t layer) : layer_(layer) {}
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

}  // namespace shiftrt
