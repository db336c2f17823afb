// SPDX-License-Identifier: Apache-2.0
// Residual streams that are kept, so that several plans can continue from them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shift/job.h"
#include "shift/sums/pass.h"

namespace shiftrt {

// Streams of the original model before some blocks, by block and batch.
using LaterStreams = std::map<int64_t, std::vector<KeptRows>>;

// Keeps the streams of the original model before some blocks while a pass runs.
class StreamProbe : public Probe {
 public:
  StreamProbe(std::vector<int64_t> layers, int64_t batches);
  bool dealt() const override { return true; }  // each process keeps the streams of its batches
  void Begin(Collector&, int64_t, int64_t) override {}
  void BeginBatch(int64_t batch) override { batch_ = batch; }
  std::vector<Tap> Taps() override;
  void Complete(int64_t) override {}

  // The streams, one per batch, before the deepest of its blocks that is not after `layer`, which receives that block.
  // All others are freed, but for those of deeper blocks with `deeper`, which receives them by their blocks. None, and
  // `layer` stays, where every block is after it.
  std::vector<KeptRows> Take(int64_t& layer, LaterStreams* deeper = nullptr);

 private:
  std::vector<int64_t> layers_;
  std::vector<std::vector<KeptRows>> streams_;  // by layer and batch
  int64_t batch_ = 0;
};

// The stream of the original model before block `layer`, one per batch, where the decoders of `context` have it: on its
// first GPU, or on the host. The batches are dealt out (Collector::ForEachBatch), and those that this process does not
// have are empty. `phase` names the pass.
std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress);

// The stream of a calibration text before block `layer`, from which several sequential fits start. That of the
// held-out text may be missing. `later`: streams of the fitted text before deeper blocks, which a fit need not
// compute.
struct StartStreams {
  int64_t layer = 0;
  std::vector<KeptRows> fit, heldout;
  LaterStreams later = {};

  // Copies for a text that has every `step`-th batch of both, without later streams.
  StartStreams Every(const Context& context, int64_t step) const;
};
StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase);

}  // namespace shiftrt
