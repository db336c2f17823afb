// SPDX-License-Identifier: Apache-2.0
// The product of one token's activations with a weight matrix, fused with the steps before and after it. Decoding
// consists mostly of these products. Cost: reads every weight once, in 16-byte loads, one or two rows per warp; other
// reads are few.
#pragma once

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/rope.h"
#include "runtime/activation.h"

namespace shiftrt::gpu {

// y = f(x) W' (+ bias), W (rows, cols) as stored; cols: a multiple of 8, and with quantised weights of 32 and of their
// blocks. x, y, and all vectors float32. With norm_weight (cols), f is the root-mean-square norm: the scale is applied
// to the finished dot product.
//
// Quantised weights (matvec_blocks.cu) are not rounded. As on a CPU (kernels/matmul.h), f(x) is rounded to 16 bits
// within each 32 elements: the error of an element is at most 2^-16 of the largest of them. The product takes 0.56
// bytes per weight of Q4_K and Q4_0, 0.82 of Q6_K, 1.06 of Q8_0, each for 2 FLOP. MatVecAdd() takes no norm then.
// Throws Error for a gate, a rotation or a norm with more columns than shared memory has room for.
struct MatVecProblem {
  WeightRows w = {};
  int64_t rows = 0, cols = 0;
  const float* x = nullptr;
  const float* norm_weight = nullptr;
  float eps = 0;
  const float* bias = nullptr;  // (rows), or null
  float* y = nullptr;           // not x
};

// `multiprocessors`: the number of multiprocessors of the device, from which the number of blocks follows.
void MatVec(Stream stream, const MatVecProblem& problem, int multiprocessors);
// y = addend + the product; addend (rows) may be y.
void MatVecAdd(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors);
// y (rows / 2) = activation(first half) * second half of the product, with kSilu or kGeluTanh: W holds the gate's rows,
// then the up projection's.
void MatVecGated(Stream stream, Activation activation, const MatVecProblem& problem, int multiprocessors);

// Where one token's queries, keys and values go: rotated queries to `q`, rotated keys and values to row *cache_row of
// `keys` and `values`.
struct RotatedHeads {
  RopeTable table = {};
  const int32_t *position = nullptr, *cache_row = nullptr;  // in device memory
  int heads = 0, kv_heads = 0, head_dim = 0;                // head_dim: even
  float* q = nullptr;                                       // (heads * head_dim)
  DeviceArray keys = {}, values = {};                       // (rows, kv_heads * head_dim), in the type of W
};
// The product with the joined matrices of queries, keys and values, whose `rows` are (heads + 2 kv_heads) * head_dim,
// and RopeAndStore of its result without head norms; `y` is unused. A warp has both rows of a pair that is rotated.
void MatVecRotate(Stream stream, const MatVecProblem& problem, const RotatedHeads& heads, int multiprocessors);

// Slots of a mixture, pairs of a token and one of its experts. Slot s multiplies vector s / slots_per_vector with the
// matrix of expert experts[s], which is in device memory.
struct ExpertSlots {
  const int32_t* experts = nullptr;
  int64_t count = 0, slots_per_vector = 1;
};
// MatVec() and MatVecGated() for each slot, in one launch. `rows` are those of one expert; w has those of all experts,
// one below the other and in one part. There is neither norm nor bias. y (count, rows), or (count, rows / 2).
void MatVecOfExperts(Stream stream, const MatVecProblem& problem, const ExpertSlots& slots, int multiprocessors);
void MatVecGatedOfExperts(Stream stream, Activation activation, const MatVecProblem& problem, const ExpertSlots& slots,
                          int multiprocessors);

// The division of a product of `rows` rows between warps and blocks. A warp processes two rows together, which halves
// the reads of the vector, unless that would leave multiprocessors without a block. There are as many blocks as the
// rows can use, up to the number that is resident. `paired`: always two rows, because the pairs are fixed. `norm`: the
// product begins with a norm.
struct MatVecTile {
  int rows_per_warp, blocks;
};
MatVecTile ChooseMatVecTile(int64_t rows, bool paired, bool norm, int multiprocessors);

}  // namespace shiftrt::gpu
