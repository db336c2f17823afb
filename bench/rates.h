// SPDX-License-Identifier: Apache-2.0
// The rates of this machine's CPU at the kinds of work that a repair consists of, for `run --dry-run --hardware here`.
#pragma once

#include "estimate/hardware.h"
#include "models/config.h"
#include "runtime/context.h"

namespace shiftrt {

// Runs the program's own kernels on random numbers for about two seconds: a product of 512 tokens with weights of both
// types, ridge sums, an eigendecomposition, and reads of memory. The shapes are those of the model, up to 2,048 inputs
// and 4,096 outputs. The memory is what the process may use now.
Hardware MeasureThisMachine(const Context& context, const ModelConfig& config);

}  // namespace shiftrt
