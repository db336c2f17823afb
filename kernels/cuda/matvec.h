// One token's product with a weight matrix, fused with what stands before and behind it: what decoding consists of.
// Cost: reads every weight once, in 16-byte loads, a warp one or two rows; the rest is small beside it.
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
// The same with gelu in its tanh form.
void MatVecGeGlu(Stream stream, const MatVecProblem& problem, int multiprocessors);

// How a product of `rows` rows is shared out. A warp takes two rows together, and so reads the vector half as often,
// unless that left multiprocessors without a block; of blocks there are as many as it can use, up to what the device
// holds at once with the next launch's beside them. `glu`: the pairs are those of gate and up.
struct MatVecTile {
  int rows_per_warp, blocks;
};
MatVecTile ChooseMatVecTile(int64_t rows, bool glu, int multiprocessors);

}  // namespace shiftrt::gpu
