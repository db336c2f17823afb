// SPDX-License-Identifier: Apache-2.0
// The gated short convolution of LFM2 between its matrix products (behaves as Lfm2ShortConv of transformers): out =
// c * conv(b * x), where b, c and x are parts of the input, and the convolution is CausalConvolution() of
// kernels/gated_delta.h without SiLU.
// Cost: 2 width + 2 FLOP per channel and token. The rows are read and written once each.
#pragma once

#include <span>

#include "kernels/gated_delta.h"
#include "runtime/context.h"
#include "runtime/convolution_shape.h"
#include "runtime/tensor.h"

namespace shiftrt {

// The rows of a short convolution, with n channels.
struct ShortConvolutionRows {
  MatrixView<const float> in;                      // (tokens, 3 n): b, c and x side by side
  MatrixView<float> product = {}, convolved = {};  // (tokens, n): b * x, and the convolution of that
};

// Computes rows.product, rows.convolved and out (tokens, n), which may be rows.convolved. w (n, 1, width) is of any
// plain type. The rows that sequences go on from are those of the product.
void ShortConvolution(const Context& context, const ConvolutionShape& shape, std::span<const DeltaSequence> sequences,
                      const ShortConvolutionRows& rows, const TensorView& w, MatrixView<float> out);
// Its gradients, of sequences that go on from nothing, from that of out, which was not rows.convolved: din
// (tokens, 3 n) is written; dw (1, n width) is added to, unless it is empty.
void ShortConvolutionGradient(const Context& context, const ConvolutionShape& shape,
                              std::span<const DeltaSequence> sequences, const ShortConvolutionRows& rows,
                              const TensorView& w, MatrixView<const float> dout, MatrixView<float> din,
                              MatrixView<float> dw);

}  // namespace shiftrt
