// SPDX-License-Identifier: Apache-2.0
// A step of AdamW on arrays in device memory (kernels/adamw.h), and sums over such arrays in a fixed order.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// The factors of one step: with g = gradient_scale * gradient, first = beta1 first + (1 - beta1) g, second = beta2
// second + (1 - beta2) g^2, and values = keep values - rate first / (sqrt(second) root + epsilon). rate and root have
// the bias corrections in them.
struct AdamWFactors {
  float gradient_scale = 1, beta1 = 0, beta2 = 0, keep = 1, rate = 0, root = 1, epsilon = 0;
};
// All arrays have n elements. Cost: reads 16 bytes per element and writes 12; one launch.
void StepAdamW(Stream stream, const AdamWFactors& factors, const float* gradient, int64_t n, float* values,
               float* first, float* second);

// Doubles that the two sums below use as scratch.
inline constexpr int64_t kSumScratch = 512;
// sum[0] = the sum of the squares of n values, in float64; in device memory. Cost: reads the values; two launches.
void SumSquares(Stream stream, const float* values, int64_t n, double* scratch, double* sum);
// sum[0] = the sum of |w * gradient| over the elements of gradient (rows, cols), in float64; w is (rows, cols) dense,
// and `offset` is added to each of its elements.
void SumAbsoluteProducts(Stream stream, ConstDeviceArray w, float offset, MatrixView<const float> gradient,
                         double* scratch, double* sum);

}  // namespace shiftrt::gpu
