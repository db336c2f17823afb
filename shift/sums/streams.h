// SPDX-License-Identifier: Apache-2.0
// Residual streams that are kept to go on from.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shift/sums/pass.h"

namespace shiftrt {

// The stream of the original model before block `layer`, one per batch, where the decoders of `context` have it: on its
// first GPU, or on the host. `phase` names the pass.
std::vector<KeptRows> StreamsBefore(int64_t layer, const Context& context, std::shared_ptr<const Weights> weights,
                                    std::span<const Batch> batches, const std::string& phase, Progress& progress);

}  // namespace shiftrt
