// SPDX-License-Identifier: Apache-2.0
#include "kernels/short_convolution.h"

#include "kernels/cpu/gated_delta_parts.h"
#include "kernels/row_parts.h"

namespace shiftrt {

namespace {

// out = a * b; out may be either.
void Multiply(const Context& context, MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) {
  ForEachRowPart(context, out, [&](int64_t row, int64_t col, int64_t count) {
    const float *const left = a.row(row) + col, *const right = b.row(row) + col;
    float* const to = out.row(row) + col;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = left[i] * right[i];
  });
}

// The rows of a sequence, which a call has some of.
template <typename T>
MatrixView<T> Of(const MatrixView<T>& x, const DeltaSequence& sequence) {
  return x.Rows(sequence.begin, sequence.count);
}

}  // namespace

void ShortConvolution(const Context& context, const ConvolutionShape& shape, std::span<const DeltaSequence> sequences,
                      const ShortConvolutionRows& rows, const TensorView& w, MatrixView<float> out) {
  const int64_t n = shape.channels;
  CheckRecurrentRows(sequences, rows.in, 3 * n, "the input of a short convolution");
  CheckConvolutionRows(shape, sequences, rows.product, "the product of a short convolution");
  CheckConvolutionRows(shape, sequences, out, "the output of a short convolution");
  for (const DeltaSequence& s : sequences)
    Multiply(context, Of(rows.in.Cols(0, n), s), Of(rows.in.Cols(2 * n, n), s), Of(rows.product, s));
  CausalConvolution(context, shape, sequences, rows.product, w, rows.convolved);
  for (const DeltaSequence& s : sequences)
    Multiply(context, Of(MatrixView<const float>(rows.convolved), s), Of(rows.in.Cols(n, n), s), Of(out, s));
}

void ShortConvolutionGradient(const Context& context, const ConvolutionShape& shape,
                              std::span<const DeltaSequence> sequences, const ShortConvolutionRows& rows,
                              const TensorView& w, MatrixView<const float> dout, MatrixView<float> din,
                              MatrixView<float> dw) {
  const int64_t n = shape.channels;
  CheckRecurrentRows(sequences, rows.in, 3 * n, "the input of a short convolution");
  CheckRecurrentRows(sequences, din, 3 * n, "the gradient of a short convolution's input");
  CheckConvolutionRows(shape, sequences, dout, "the gradient of a short convolution's output");
  const MatrixView<const float> b = rows.in.Cols(0, n), c = rows.in.Cols(n, n), x = rows.in.Cols(2 * n, n);
  const MatrixView<float> db = din.Cols(0, n), dc = din.Cols(n, n), dx = din.Cols(2 * n, n);
  Multiply(context, dout, rows.convolved, dc);
  Multiply(context, dout, c, db);  // the gradient of the convolution's output
  CausalConvolutionGradient(context, shape, sequences, rows.product, w, db, dx, dw);  // dx: that of the product
  Multiply(context, dx, x, db);
  Multiply(context, dx, b, dx);
}

}  // namespace shiftrt
