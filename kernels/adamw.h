// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov & Hutter 2019) on parameters in one flat array.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/context.h"

namespace shiftrt {

struct AdamW {
  float rate = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float decay = 0;           // decoupled: values are multiplied by 1 - rate * decay
  float gradient_scale = 1;  // gradients are multiplied by it first: 1 / accumulated batches, clipping
  int64_t step = 1;          // counts from 1, for the bias correction
};

// The factors of one step. With g = gradient_scale * gradient: first = beta1 first + (1 - beta1) g, second = beta2
// second + (1 - beta2) g^2, and values = keep values - rate first / (sqrt(second) root + epsilon). rate and root
// contain the bias corrections.
struct AdamWFactors {
  float gradient_scale = 1, beta1 = 0, beta2 = 0, keep = 1, rate = 0, root = 1, epsilon = 0;
};
// Throws Error for a step below 1.
AdamWFactors FactorsOf(const AdamW& settings);

// Makes one step; all spans have the same length. first and second are the running moments of the gradient, zero before
// the first step. The bits do not depend on the number of threads or the instruction set.
void AdamWStep(const Context& context, const AdamW& settings, std::span<const float> gradient, std::span<float> values,
               std::span<float> first, std::span<float> second);

// The sum of squares in float64, added up in an order that does not depend on the number of threads.
double SumOfSquares(const Context& context, std::span<const float> values);

}  // namespace shiftrt
