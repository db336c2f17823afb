// SPDX-License-Identifier: Apache-2.0
// The memory-bound steps between products, and their gradients (kernels/elementwise.h, kernels/matmul.h,
// kernels/dropout.h), on rows in device memory. Rows have any width and any stride, and are float32
// unless they say otherwise. Cost of each: reads its inputs once and writes its outputs once; one launch.
#pragma once

#include "kernels/cuda/grid.h"
#include "kernels/cuda/rows.h"
#include "runtime/activation.h"

namespace shiftrt::gpu {

// x = 0.
void ZeroRows(Stream stream, MatrixView<float> x);
// to = from, widened or rounded to the type of `to`. Both have one type, or one of them is float32.
void CopyRows(Stream stream, const ConstDeviceRows& from, const DeviceRows& to);
// Row i of `to` = row rows[i] of `from`, times `scale`; rows (to.rows) in device memory, each inside `from`, of which
// `to` may be other rows. The types are those of CopyRows().
void GatherRows(Stream stream, const int32_t* rows, const ConstDeviceRows& from, const DeviceRows& to, float scale = 1);
// Row rows[i] of `to` = row i of `from`; rows (from.rows) in device memory, each only once.
void ScatterRows(Stream stream, const int32_t* rows, MatrixView<const float> from, MatrixView<float> to);
// to += factor * from + row, where row (cols) is added to every row. Without data, `from` stands for zeros; `row` may
// be null.
void AddRows(Stream stream, MatrixView<const float> from, MatrixView<float> to, const float* row = nullptr,
             float factor = 1);
// x *= factor.
void ScaleRows(Stream stream, float factor, MatrixView<float> x);
// x = cap * tanh(x / cap). cap > 0.
void SoftCapRows(Stream stream, float cap, MatrixView<float> x);

// Element (i, j) of `to` is 0 where the 32 bits that kernels/dropout.h draws for element i * cols + j with this key are
// below the threshold, and otherwise that of `from` times `scale`. to may be from.
struct Dropped {
  uint64_t key = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
void DropRows(Stream stream, const Dropped& dropped, MatrixView<const float> from, MatrixView<float> to);

// The operands of the unit between the projections of an MLP. Without gate, `up` has no data, and `gate` is the output
// of the up projection. The biases (cols) may be null.
struct GateOperands {
  ConstDeviceRows gate, up = {};
  const float *gate_bias = nullptr, *up_bias = nullptr;
};
// out = activation(gate + gate_bias) * (up + up_bias), without gate activation(gate + gate_bias). All have one type.
// out may be gate. If `rounded` is not null, out is float32, and also written there, as WrittenRows says.
void GateRows(Stream stream, Activation activation, const GateOperands& of, const DeviceRows& out,
              BFloat16* rounded = nullptr);
// In place of dgate, which holds the gradient of the result of GateRows when called, that of the gate; and dup. gate
// and up are those before that call, without biases. Without gate, up and dup have no data.
void GateRowsGradient(Stream stream, Activation activation, MatrixView<const float> gate, MatrixView<const float> up,
                      const WrittenRows& dgate, const WrittenRows& dup);

// The same of the clamped unit (runtime/activation.h), in float32: gate becomes its result, and dgate, which holds the
// gradient of the result, becomes that of gate.
void ClampedGateRows(Stream stream, const ClampedSwiGlu& unit, const WrittenRows& gate, MatrixView<const float> up);
void ClampedGateRowsGradient(Stream stream, const ClampedSwiGlu& unit, MatrixView<const float> gate,
                             MatrixView<const float> up, const WrittenRows& dgate, const WrittenRows& dup);

// x (tokens, heads * head_dim) *= sigmoid(gates): the gate of a head stands behind the queries of that head in `both`,
// (tokens, 2 heads * head_dim) and more columns. The types are those of CopyRows(). head_dim: a multiple of 8.
void GateHeads(Stream stream, const ConstDeviceRows& both, int64_t head_dim, const DeviceRows& x);

// The same in gradients, in float32. SplitHeads() copies the queries and the gates of `both` (tokens, 2 heads *
// head_dim) to matrices of their own, (tokens, heads * head_dim), and JoinHeads() copies them back. head_dim: a
// multiple of 8.
void SplitHeads(Stream stream, MatrixView<const float> both, int64_t head_dim, MatrixView<float> queries,
                MatrixView<float> gates);
void JoinHeads(Stream stream, MatrixView<const float> queries, MatrixView<const float> gates, int64_t head_dim,
               const WrittenRows& both);
// x *= sigmoid(gates), all (tokens, n). In its gradient, x is that before the call; dy becomes the gradient of x.
void SigmoidGate(Stream stream, MatrixView<const float> gates, const WrittenRows& x);
void SigmoidGateGradient(Stream stream, MatrixView<const float> gates, MatrixView<const float> x, const WrittenRows& dy,
                         const WrittenRows& dgates);

// One factor per row, scales (rows) or their sigmoids: x *= it.
struct RowScales {
  const float* scales = nullptr;
  bool sigmoid = false;
};
void ScaleEachRow(Stream stream, const RowScales& by, const WrittenRows& x);
// Its gradients. dy becomes that of x. dscales (rows) is written: the products of the rows of dy with those of x, or,
// of sigmoids, with those of the result, times 1 - sigmoid. `rows` is that x or result.
void ScaleEachRowGradient(Stream stream, const RowScales& by, MatrixView<const float> rows, MatrixView<float> dy,
                          float* dscales);

// to (1, n) += the sum of the rows of x (tokens, n), added in a fixed order.
void AddColumnSums(Stream stream, MatrixView<const float> x, MatrixView<float> to);

}  // namespace shiftrt::gpu
