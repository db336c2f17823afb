// SPDX-License-Identifier: Apache-2.0
// The memory-bound steps of gradients (kernels/elementwise.h, kernels/rope.h, kernels/matmul.h, kernels/dropout.h), on
// float32 rows in device memory. Rows have any width and any stride. Cost of each: reads its inputs once and writes its
// outputs once; one launch.
#pragma once

#include "kernels/cuda/grid.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/rows.h"
#include "runtime/activation.h"

namespace shiftrt::gpu {

// x = 0.
void ZeroRows(Stream stream, MatrixView<float> x);
// to = from.
void CopyRows(Stream stream, MatrixView<const float> from, MatrixView<float> to);
// Row i of `to` = row rows[i] of `from`; rows (to.rows) in device memory.
void GatherRows(Stream stream, const int32_t* rows, MatrixView<const float> from, MatrixView<float> to);
// Row rows[i] of `to` = row i of `from`; rows (from.rows) in device memory, each only once.
void ScatterRows(Stream stream, const int32_t* rows, MatrixView<const float> from, MatrixView<float> to);
// to += from. A `from` whose stride is 0 is one row, which is added to every row.
void AddRows(Stream stream, MatrixView<const float> from, MatrixView<float> to);
// x *= factor.
void ScaleRows(Stream stream, float factor, MatrixView<float> x);
// to, dense in its type, = from, rounded.
void NarrowRows(Stream stream, MatrixView<const float> from, DeviceArray to);

// Element (i, j) of `to` is 0 where the 32 bits that kernels/dropout.h draws for element i * cols + j with this key are
// below the threshold, and otherwise that of `from` times `scale`. to may be from.
struct Dropped {
  uint64_t key = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
void DropRows(Stream stream, const Dropped& dropped, MatrixView<const float> from, MatrixView<float> to);

// gate = activation(gate) * up, in place.
void GateRows(Stream stream, Activation activation, const WrittenRows& gate, MatrixView<const float> up);
// In place of dgate, which holds the gradient of the result of GateRows when called, that of the gate; and dup. gate
// and up are those before that call.
void GateRowsGradient(Stream stream, Activation activation, MatrixView<const float> gate, MatrixView<const float> up,
                      const WrittenRows& dgate, const WrittenRows& dup);
// x = activation(x), in place: the MLP without gate.
void ActivateRows(Stream stream, Activation activation, const WrittenRows& x);
// In place of dx, which holds the gradient of the result of ActivateRows when called, that of x, its input.
void ActivateRowsGradient(Stream stream, Activation activation, MatrixView<const float> x, const WrittenRows& dx);

// Rotates x (tokens, heads * head_dim) in place by the table's angles at positions (tokens), which are in device
// memory; with `back`, by their opposites: the gradient. With the table's query_scale, multiplies each row by it too.
void RotateRows(Stream stream, const WrittenRows& x, int64_t head_dim, const RopeTable& table, const int32_t* positions,
                bool back);

// to (1, n) += the sum of the rows of x (tokens, n), added in a fixed order.
void AddColumnSums(Stream stream, MatrixView<const float> x, MatrixView<float> to);

}  // namespace shiftrt::gpu
