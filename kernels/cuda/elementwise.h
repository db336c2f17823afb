// SPDX-License-Identifier: Apache-2.0
// The memory-bound steps between products (kernels/elementwise.h, kernels/rope.h).
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/activation.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// out (count, hidden) float32 dense = rows `tokens` (count, in device memory, each inside the table) of table
// (vocab, hidden), times `scale`. hidden: a multiple of 8.
void Embed(Stream stream, const int32_t* tokens, int64_t count, ConstDeviceArray table, int64_t hidden, float* out,
           float scale = 1);

// out (count, width) dense = rows `rows` (count, in device memory) of from (.., width), one type for both; out may be
// other rows of the same array. width: a multiple of 8.
void Gather(Stream stream, const int32_t* rows, int64_t count, ConstDeviceArray from, int64_t width, DeviceArray out);

// out (count, stride), of which the first `width` columns = from (count, width) dense, in float32. width and stride:
// multiples of 8.
void Widen(Stream stream, ConstDeviceArray from, int64_t count, int64_t width, float* out, int64_t stride);

// out (tokens, n) = silu(gate + gate_bias) * (up + up_bias), where gate_up (tokens, 2 n) holds gate, then up, and bias
// (2 n) may be null. One type for both. n: a multiple of 8.
void SwiGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out);
// The same with the tanh form of gelu.
void GeGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out);

// out (tokens, n) = activation(x + bias): the MLP without gate. bias (n) may be null, out may be x. One type for both.
// n: a multiple of 8.
void Activate(Stream stream, Activation activation, ConstDeviceArray x, const float* bias, int64_t tokens, int64_t n,
              DeviceArray out);

// x = cap * tanh(x / cap), in place, n of them. cap > 0.
void SoftCap(Stream stream, float cap, int64_t n, float* x);

}  // namespace shiftrt::gpu
