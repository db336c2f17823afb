// SPDX-License-Identifier: Apache-2.0
// The inner loops, which every instruction set implements in a file of its own, compiled with the flags of that set.
// The interface has only pointers, so that no inline code compiled for one CPU can be linked into the code for another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/context.h"
#include "runtime/dtype.h"

namespace shiftrt {

// The keys of a block that each of NR columns sees: begin[j] to end[j] - 1. If `begin` is null, from the first key on.
struct SeenKeys {
  const int32_t* begin = nullptr;
  const int32_t* end = nullptr;
};

// Rows of attention scores whose gradients are computed. Row r sees the keys begin[r] to end[r] - 1 of a block. Also
// for each row: the logarithm of its softmax's denominator, and the mean of the gradients of its probabilities,
// weighted by these.
struct ScoreRows {
  const int32_t* begin;
  const int32_t* end;
  const float* log_sums;
  const float* means;
  float scale;
  float soft_cap;  // 0: no soft cap
};

// Tokens of the gated delta rule for some columns of one head (kernels/gated_delta.h).
struct DeltaRows {
  const float *q, *k;         // (tokens, key_dim), dense, divided by their norms; q also by sqrt(key_dim)
  const float *decay, *beta;  // (tokens)
  const float* v;             // (tokens, columns), rows v_stride apart
  float* out;                 // (tokens, columns), rows out_stride apart
  int64_t v_stride, out_stride;
  int64_t tokens, key_dim, columns;  // columns <= delta_columns
};

// A block of a product x W' whose operands BlockProduct has packed.
struct PackedBlock {
  const void* x;  // panels of tile_rows rows, one after the other
  int64_t rows;
  const void* w;  // one panel
  int64_t cols;   // <= tile_cols
  int64_t depth;  // <= max_depth

  // The memory that is packed next, which may be prefetched: `next_rows` rows of `next_bytes`, `next_stride` bytes
  // apart.
  const std::byte* next = nullptr;
  int64_t next_stride = 0;
  int64_t next_rows = 0;
  int64_t next_bytes = 0;
};

// The most bytes of a packed panel of W.
constexpr int64_t kMostPanelBytes = 64 << 10;

// Packs and multiplies the operands of a product y = x W' or y = x B. The depth of a block is chosen so that its packed
// panel of W leaves room for x in the first-level cache.
struct BlockProduct {
  int64_t tile_rows;  // MR: rows of x per packed panel
  int64_t tile_cols;  // NR: output columns per packed panel
  int64_t max_rows;   // the most rows of x that are packed at a time
  int64_t max_depth;  // the most elements of k in a block
  int64_t step;       // packed panels are as deep as the next multiple of this
  int64_t x_bytes;    // bytes of one packed element of x, and of W if both have as many parts

  // Packs x[i][k] for i < rows <= MR and k < depth; rows of x are `stride` apart. Zero up to MR rows.
  void (*pack_rows)(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed);
  // Packs columns of a matrix: x[k][i] for i < rows <= MR and k < depth.
  void (*pack_columns)(const float* x, int64_t stride, int64_t rows, int64_t depth, void* packed);
  // Packs w[j][k] for j < cols <= NR and k < depth; rows of w are `stride` elements apart. Zero up to NR columns.
  void (*pack_panel)(const void* w, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed);
  // Packs columns of a matrix: b[k][j] for j < cols <= NR and k < depth.
  void (*pack_right)(const void* b, DType dtype, int64_t stride, int64_t cols, int64_t depth, void* packed);
  // y (rows, cols) = (y if accumulate) + the block's product; rows of y are `stride` apart.
  void (*multiply)(const PackedBlock& block, bool accumulate, float* y, int64_t stride);
};

constexpr int64_t kMostTiledRows = 24;  // the most rows of x that SimdBody::quantised_tiles takes

// A product of any number of rows of x, rounded to 16 or 8 bits within each 32 elements, with rows of quantised blocks.
struct IntegerProduct {
  // Writes a row of x, rounded, to memory of prepared_bytes(k) bytes, 64-byte aligned.
  int64_t (*prepared_bytes)(int64_t k);
  void (*prepare)(const float* x, int64_t k, std::byte* prepared);
  // As SimdBody::rows says, for m rows that `prepare` has written one after the other.
  void (*multiply)(const std::byte* prepared, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
                   int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride);
};

struct SimdBody {
  // The product in float32. Packed rows are packed[k][i], i < MR; a packed panel is packed[k][j], j < NR.
  BlockProduct product;

  // y[i][j] = (y[i][j] if accumulate) + bias[j] + sum_k x[i][k] w[j][k] for i < m <= 4 and j in [begin, end). One
  // stream over the rows of w, whose type is plain. bias may be null.
  void (*rows)(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k, int64_t begin,
               int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride);
  // The same for w of a quantised type.
  IntegerProduct quantised_rows;
  // The same for 1 <= m <= kMostTiledRows, with x as it is: rows of w are converted to float32, some at a time, and
  // meet all rows of x.
  void (*quantised_tiles)(const float* x, int64_t x_stride, int64_t m, const void* w, DType dtype, int64_t k,
                          int64_t begin, int64_t end, const float* bias, bool accumulate, float* y, int64_t y_stride);
  // Converts elements first to first + count of a row of quantised blocks to float32; both are multiples of 32.
  void (*dequantise)(const std::byte* row, DType dtype, int64_t first, int64_t count, float* out);
  // tile[i][j] = sum_k a[k][i] b[k][j]: a (depth, MR), b (depth, NR), tile (MR, NR), all dense, with the MR and NR of
  // `product`.
  void (*tile)(const float* a, const float* b, int64_t depth, float* tile);
  float (*dot)(const float* a, const float* b, int64_t n);
  // y += alpha x.
  void (*axpy)(float alpha, const float* x, float* y, int64_t n);
  // y += the sum of weights[j] x[j] over j < rows, in this order; rows of x are x_stride apart. The bits are those of
  // as many calls of axpy.
  void (*add_weighted)(const float* weights, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t n);
  // gate = silu(gate) up. Without `up` (null), silu(gate) alone.
  void (*swiglu)(float* gate, const float* up, int64_t n);
  // gate = gelu(gate) up, with the tanh form of gelu.
  void (*geglu)(float* gate, const float* up, int64_t n);
  // The gradients of swiglu and geglu: dgate holds the gradient of the result and is replaced by that of the gate.
  // Without up, dup is null too.
  void (*swiglu_gradient)(const float* gate, const float* up, float* dgate, float* dup, int64_t n);
  void (*geglu_gradient)(const float* gate, const float* up, float* dgate, float* dup, int64_t n);
  // x = cap tanh(scale x / cap).
  void (*soft_cap)(float* x, int64_t n, float scale, float cap);
  // x = exp(x - shift). Returns their sum.
  double (*exponentiate)(float* x, int64_t n, float shift);
  // One block of an online softmax down NR columns: scores (keys, NR) become exp(scale (score - maximum)), 0 before key
  // seen.begin[j] and from key seen.end[j] on in column j. maximum and sum (NR) are updated; earlier sums must then be
  // multiplied by rescale (NR). scale > 0.
  void (*softmax)(float* scores, int64_t keys, float scale, const SeenKeys& seen, float* maximum, float* sum,
                  float* rescale);
  // scores and gradients (rows, NR): the products of queries and keys become probabilities, 0 where a key is not seen,
  // and the gradients of probabilities become those of the products.
  void (*softmax_gradient)(float* scores, float* gradients, int64_t rows, const ScoreRows& of);
  // The gated delta rule: takes some columns of a head's state, (key_dim, delta_columns), dense, through the tokens.
  int64_t delta_columns;
  void (*delta_rule)(const DeltaRows& of, float* state);
};

extern const SimdBody kPortableBody;
extern const SimdBody kAvx2Body;
extern const SimdBody kAvx512Body;

inline const SimdBody& BodyFor(Isa isa) {
  return isa >= Isa::kAvx512 ? kAvx512Body : isa == Isa::kAvx2 ? kAvx2Body : kPortableBody;
}

extern const BlockProduct kAmxBFloat16Product;
extern const BlockProduct kAmxFloat16Product;
// The product for a float32 right operand, which has three parts too and needs six products. It pays if a packed panel
// of that operand meets many rows.
extern const BlockProduct kAmxFloat32Product;

// SimdBody::quantised_rows with the instructions of AVX512-VNNI, and as a blocked product of 16 bits, and of 8 bits.
extern const IntegerProduct kAvx512IntegerRows;
extern const IntegerProduct kAvx512IntegerProduct;
extern const IntegerProduct kAvx512RoundedIntegerProduct;

// Products of operands that are rounded to bfloat16, for a right operand of any stored type.
extern const BlockProduct kAvx512RoundedProduct;
extern const BlockProduct kAmxRoundedProduct;

// The product for a right operand as stored.
inline const BlockProduct& ProductFor(const Context& context, DType right) {
  if (context.products == Products::kBFloat16)
    return context.isa == Isa::kAmx ? kAmxRoundedProduct : kAvx512RoundedProduct;
  if (context.isa == Isa::kAmx && right == DType::kBFloat16) return kAmxBFloat16Product;
  if (context.isa == Isa::kAmx && right == DType::kFloat16) return kAmxFloat16Product;
  return BodyFor(context.isa).product;
}

// The product of attention: rounded where products are. CPUs with AMX have the instructions of AVX512-BF16 too, whose
// smaller tiles suit the short rows of a head.
inline const BlockProduct& AttentionProductFor(const Context& context) {
  return context.products == Products::kBFloat16 ? kAvx512RoundedProduct : BodyFor(context.isa).product;
}

// Bytes of `width` rows or columns that one of these products has packed: tile_rows or tile_cols of them, or more
// panels.
inline int64_t PackedBytes(const BlockProduct& product, int64_t width, int64_t depth) {
  return width * ((depth + product.step - 1) / product.step * product.step) * product.x_bytes;
}

// The packed right operand for numbers (depth, NR), dense: they are packed to `memory`, or used as they are, which is
// the packed form in float32.
inline const void* PackedFactors(const BlockProduct& product, const float* factors, int64_t depth, void* memory) {
  if (product.x_bytes == sizeof(float)) return factors;
  product.pack_right(factors, DType::kFloat32, product.tile_cols, product.tile_cols, depth, memory);
  return memory;
}

}  // namespace shiftrt
