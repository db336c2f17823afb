// The memory-bound steps between products (kernels/elementwise.h, kernels/rope.h).
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

// out (count, hidden) float32 dense = rows `tokens` (count, in device memory, each inside the table) of table
// (vocab, hidden). hidden: a multiple of 8.
void Embed(Stream stream, const int32_t* tokens, int64_t count, ConstDeviceArray table, int64_t hidden, float* out);

// out (tokens, n) = silu(gate + gate_bias) * (up + up_bias), where gate_up (tokens, 2 n) holds gate, then up, and bias
// (2 n) may be null. One type for both. n: a multiple of 8.
void SwiGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out);

}  // namespace shiftrt::gpu
