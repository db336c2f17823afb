// SPDX-License-Identifier: Apache-2.0
// The check that every export ends with: what was written runs as the plan does.
#pragma once

#include "export/formats.h"

namespace shiftrt {

// Logits (tokens, vocab) of a plan for 64 fixed tokens (fewer where the context is shorter), on the CPU: bits do not
// depend on what else runs.
Matrix<float> ProbeLogits(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan);

// Throws Error naming `directory` unless the logits of `opened`, the model that was read back from it, are those of the
// job's plan: no further away than `tolerance` times the largest magnitude of a logit. 0: the same bits.
void CheckSameLogits(const ExportJob& job, const Model& opened, const std::filesystem::path& directory,
                     double tolerance = 0);

}  // namespace shiftrt
