// SPDX-License-Identifier: Apache-2.0
// Large products through cuBLASLt, which is loaded when the first Products object is created.
#pragma once

#include <memory>

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// y (m, n) = x (m, k) W' (+ y). W is (n, k), as in checkpoints. x and W have the same type; y has that type or float32.
// Accumulation is in float32; float32 operands are not rounded to TF32. Cost: 2 m n k FLOP.
struct MatMulProblem {
  ConstDeviceArray x = {}, w = {};
  DeviceArray y = {};
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  // Operands that are stored the other way round: x (k, m), as the gradient of weights reads its operands, and W (k,
  // n), as that of activations does.
  bool x_transposed = false, w_transposed = false;
  // The elements between two stored rows; 0: rows are dense.
  int64_t x_stride = 0, w_stride = 0, y_stride = 0;

  int64_t XStride() const { return x_stride > 0 ? x_stride : x_transposed ? m : k; }
  int64_t WStride() const { return w_stride > 0 ? w_stride : w_transposed ? n : k; }
  int64_t YStride() const { return y_stride > 0 ? y_stride : n; }
};

// Owns the library handle, its workspace and the algorithms chosen so far. Use from one thread, with one stream.
class Products {
 public:
  // Throws Error naming the library if it is not installed.
  explicit Products(Stream stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  void MatMul(const MatMulProblem& problem);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt::gpu
