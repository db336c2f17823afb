// SPDX-License-Identifier: Apache-2.0
// The inner loops, which every instruction set implements in a file of its own, compiled with the flags of that set.
// The interface has only pointers, so that no inline code compiled for one CPU can be linked into the code for another.
#pragma once

#include <cstdint>

#include "runtime/context.h"
#include "runtime/dtype.h"

namespace shiftrt {

// The keys of a block that each of NR columns sees: begin[j] to end[j] - 1. Without `begin`, from the first key on.
struct SeenKeys {
  const int32_t* begin = nullptr;
  const int32_t* end = nullptr;
};

struct SimdBody {
  int64_t tile_rows;  // MR: rows of x per register tile
  int64_t tile_cols;  // NR: output columns per register tile

  // y[i][j] = (y[i][j] if accumulate) + bias[j] + sum_k x[i][k] w[j][k] for i < m <= 4 and j in [begin, end). One
  // stream over the rows of w. bias may be null.
  void (*rows)(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
               int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride);
  // packed[k][j] = w[j][k] in float32 for j < cols (zero up to NR) and k < depth; rows of w are `stride` elements
  // apart.
  void (*pack_panel)(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, float* packed);
  // packed[k][i] = x[i][k] for i < rows (zero up to MR) and k < depth; rows of x are `stride` apart.
  void (*pack_rows)(const float* x, int64_t stride, int64_t rows, int64_t depth, float* packed);
  // tile[i][j] = sum_k a[k][i] b[k][j]: a (depth, MR), b (depth, NR), tile (MR, NR), all dense.
  void (*tile)(const float* a, const float* b, int64_t depth, float* tile);
  float (*dot)(const float* a, const float* b, int64_t n);
  // y += alpha x.
  void (*axpy)(float alpha, const float* x, float* y, int64_t n);
  // gate = silu(gate) up.
  void (*swiglu)(float* gate, const float* up, int64_t n);
  // gate = gelu(gate) up, with the tanh form of gelu.
  void (*geglu)(float* gate, const float* up, int64_t n);
  // x = cap tanh(scale x / cap).
  void (*soft_cap)(float* x, int64_t n, float scale, float cap);
  // x = exp(x - shift). Returns their sum.
  double (*exponentiate)(float* x, int64_t n, float shift);
  // One block of an online softmax down NR columns: scores (keys, NR) become exp(scale (score - maximum)), 0 before key
  // seen.begin[j] and from key seen.end[j] on in column j. maximum and sum (NR) are updated; earlier sums must then be
  // multiplied by rescale (NR). scale > 0.
  void (*softmax)(float* scores, int64_t keys, float scale, const SeenKeys& seen, float* maximum, float* sum,
                  float* rescale);
};

extern const SimdBody kPortableBody;
extern const SimdBody kAvx2Body;
extern const SimdBody kAvx512Body;

inline const SimdBody& BodyFor(Isa isa) {
  return isa == Isa::kAvx512 ? kAvx512Body : isa == Isa::kAvx2 ? kAvx2Body : kPortableBody;
}

}  // namespace shiftrt
