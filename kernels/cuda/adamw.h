// SPDX-License-Identifier: Apache-2.0
// A step of AdamW on arrays in device memory (kernels/adamw.h), and sums over such arrays in a fixed order.
#pragma once

#include "kernels/adamw.h"
#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

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
