// SPDX-License-Identifier: Apache-2.0
// Residual streams that are kept to go on from.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shift/job.h"
#include "shift/sums/pass.h"

namespace shiftrt {

// The stream of the original model before block `layer`, one per batch of this process (Processes::Mine), where the
// decoders of `context` have it: on its first GPU, or on the host. `phase` names the pass.
std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress);

// The stream of a calibration text before block `layer`, from which several walks through the model start.
struct StartStreams {
  int64_t layer = 0;
  std::vector<KeptRows> fit, heldout;

  // Copies of every `step`-th batch of both.
  StartStreams Every(size_t step) const;
};
StartStreams StreamsBefore(int64_t layer, const ShiftJob& job, const std::string& phase);

}  // namespace shiftrt
