// SPDX-License-Identifier: Apache-2.0
// Products with a weight matrix as stored in checkpoints: y = x W' (+ bias), W (out, in) row-major in its own dtype.
// Accumulation is in float32; 16-bit weights are widened exactly; activations stay float32. On AMX the errors are those
// of float32 too, numbers below 2^-126 count as 0, and infinity times a number may be NaN (docs/dev/cpu.md).
//
// Quantised weights have no other rounding than that of their format. Products with up to eight rows, and on a CPU with
// AVX512-VNNI with any number of rows, round x to 16 bits within each 32 elements: the error of an element is at most
// 2^-16 of the largest of them.
//
// With Products::kBFloat16, both operands are rounded to bfloat16 first (to nearest, numbers below 2^-126 to 0), and
// only the sums are in float32. That is "rounded products" below api/. It holds for more than four rows of x or dy (of
// x with quantised weights: more than 24), and for weight gradients of any size.
//
// Cost: 2 m n k FLOP. Reads the n k weights once for m = 1 (the bandwidth floor of decoding), otherwise once per block
// of rows.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// y (m, n) = x (m, k) W' + bias, W (n, k) of any type but float64; bias (n), the same, or empty.
// With `accumulate` the result is added to y. y must not alias x. Small m use an algorithm that processes one row of W
// at a time, larger m a blocked one. The result does not depend on the number of threads.
void MatMul(const Context& context, MatrixView<const float> x, const TensorView& w, const TensorView& bias,
            bool accumulate, MatrixView<float> y);

// One of several products y (m, n) = x (m, k) W' + bias.
struct MatMulItem {
  MatrixView<const float> x;
  const TensorView* w;
  MatrixView<float> y;
  const TensorView* bias = nullptr;  // null or empty: there is none
};
// Computes each product as MatMul() does. Those of few rows are divided among the threads together, so that the threads
// wait for each other once: the experts of a token have one row each. No y may alias anything else.
void MatMulEach(const Context& context, std::span<const MatMulItem> items);

// The low-rank term of a projection (LoRA): W is replaced by W + scale b a. The products write what is between the
// factors to `inner`.
struct LowRankFactors {
  const TensorView& a;  // (rank, k), float32
  const TensorView& b;  // (n, rank), float32
  float scale;
  MatrixView<float> inner;  // (m, rank)
};
// inner = scale x a', and y = x W' + bias + inner b', in one pass over x and y.
void MatMulLowRank(const Context& context, MatrixView<const float> x, const TensorView& w, const TensorView& bias,
                   const LowRankFactors& low, MatrixView<float> y);

// y (m, n) = x (m, k) B (+ y), B (k, n) float32, row-major and not transposed, as adapters are stored.
void MatMulRight(const Context& context, MatrixView<const float> x, MatrixView<const float> b, bool accumulate,
                 MatrixView<float> y);

// The gradients of y = x W' + bias. Neither result depends on the number of threads.
// dx (m, k) = dy (m, n) W (+ dx), W (n, k) as stored.
void MatMulInputGradient(const Context& context, MatrixView<const float> dy, const TensorView& w, bool accumulate,
                         MatrixView<float> dx);
// inner = scale dy b, and dx = dy W + inner a (+ dx).
void MatMulInputGradientLowRank(const Context& context, MatrixView<const float> dy, const TensorView& w,
                                const LowRankFactors& low, bool accumulate, MatrixView<float> dx);
// dw (n, k) += dy' x, with x (m, k) and dy (m, n).
void MatMulWeightGradient(const Context& context, MatrixView<const float> dy, MatrixView<const float> x,
                          MatrixView<float> dw);
// db (1, n) += the sum of the rows of dy (m, n).
void BiasGradient(const Context& context, MatrixView<const float> dy, MatrixView<float> db);

}  // namespace shiftrt
