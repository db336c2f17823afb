// SPDX-License-Identifier: Apache-2.0
// The rates of this machine's CPU at the kinds of work that a repair consists of, for `run` and its dry run.
#pragma once

#include "models/config.h"
#include "runtime/context.h"
#include "runtime/dtype.h"

namespace shiftrt {

// FLOP per second of products with the model's weights and of sums in float64, and bytes per second that are read from
// memory.
struct Rates {
  double products = 0, float64 = 0, bandwidth = 0;
};

// Runs the program's own kernels on random numbers for about a second: a product of 512 tokens with weights of this
// type (of 16 bits: bfloat16), ridge sums, and reads of memory. The shapes are those of the model, up to 2,048 inputs
// and 4,096 outputs.
Rates MeasureRates(const Context& context, const ModelConfig& config, DType weights);

}  // namespace shiftrt
