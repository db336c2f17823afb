// SPDX-License-Identifier: Apache-2.0
// Residual streams that are kept, so that several plans can continue from them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shift/job.h"
#include "shift/sums/pass.h"

namespace shiftrt {

// The stream of the original model before block `layer`, one per batch, where the decoders of `context` have it: on its
// first GPU, or on the host. The batches are dealt out (Tally::ForEachBatch), and those that this process does not have
// are empty. `phase` names the pass.
std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress);

// The stream of a calibration text before block `layer`, from which several walks through the model start.
struct StartStreams {
  int64_t layer = 0;
  std::vector<KeptRows> fit, heldout;

  // Copies for a text that has every `step`-th batch of both.
  StartStreams Every(const Context& context, int64_t step) const;
};
StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase);

}  // namespace shiftrt
