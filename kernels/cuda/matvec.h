// One token's product with a weight matrix, fused with what stands before and behind it: what decoding consists of.
// Cost: reads every weight once, in 16-byte loads, a warp a row; the rest is small beside it.
#pragma once

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// y = f(x) W' (+ bias), W (rows, cols) as stored; cols: a multiple of 8. x, y, and all vectors float32.
// With norm_weight (cols), f is the root-mean-square norm: the scale is applied to the finished dot product.
struct MatVecProblem {
  ConstDeviceArray w;
  int64_t rows = 0, cols = 0;
  const float* x = nullptr;
  const float* norm_weight = nullptr;
  float eps = 0;
  const float* bias = nullptr;  // (rows), or null
  float* y = nullptr;           // not x
};

// `multiprocessors`: how many of them the device has; the number of blocks follows from it.
void MatVec(Stream stream, const MatVecProblem& problem, int multiprocessors);
// y = addend + the product; addend (rows) may be y.
void MatVecAdd(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors);
// y (rows / 2) = silu(first half) * second half of the product: W holds the gate's rows, then the up projection's.
void MatVecSwiGlu(Stream stream, const MatVecProblem& problem, int multiprocessors);

// Blocks of a matrix-vector product of `rows` rows: all it can use, up to what the device holds at once.
int MatVecBlocks(int64_t rows, int multiprocessors);

}  // namespace shiftrt::gpu
