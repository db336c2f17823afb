// SPDX-License-Identifier: Apache-2.0
#include "kernels/lra.h"

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

void CheckBias(MatrixView<const float> b, MatrixView<float> h) {
  Check(b.rows == 1 && b.cols == h.cols, "a bias of ({}, {}) for a stream of width {}", b.rows, b.cols, h.cols);
}

void AddRow(const Context& context, MatrixView<const float> b, MatrixView<float> h) {
  ParallelFor(context, h.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < h.cols; ++j) h(i, j) += b(0, j);
  });
}

}  // namespace

void ApplyLowRankLra(const Context& context, MatrixView<const float> p, MatrixView<const float> q,
                     MatrixView<const float> b, MatrixView<float> h) {
  CheckBias(b, h);
  const Matrix<float> inner(h.rows, p.cols);
  MatMulRight(context, h, p, false, inner.view());
  MatMulRight(context, inner.view(), q, true, h);
  AddRow(context, b, h);
}

void ApplyFullLra(const Context& context, MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> h) {
  CheckBias(b, h);
  const Matrix<float> update(h.rows, h.cols);
  MatMulRight(context, h, a, false, update.view());
  AddTo(context, update.view(), h);
  AddRow(context, b, h);
}

}  // namespace shiftrt
