// SPDX-License-Identifier: Apache-2.0
// The check that ends every export: the written files must compute the same as the plan.
#pragma once

#include "export/formats.h"

namespace shiftrt {

// Tolerance for the logits of a model whose matrices were rounded, to 8 bits or from quantised blocks to bfloat16.
// Logits of a different model are further apart.
constexpr double kRoundedTolerance = 0.25;

// The logits (tokens, vocab) of a plan for 64 fixed tokens, or fewer if the context is shorter. They are computed on
// the CPU, because there their bits do not depend on other work.
Matrix<float> ProbeLogits(const Context& context, const std::shared_ptr<const Weights>& weights, const DepthPlan& plan);

// Throws Error naming `directory` if the logits of `opened`, the model that was read back from it, differ from those of
// the job's plan by more than `tolerance` times the largest magnitude of a logit. 0 demands the same bits.
void CheckSameLogits(const ExportJob& job, const Model& opened, const std::filesystem::path& directory,
                     double tolerance = 0);

}  // namespace shiftrt
