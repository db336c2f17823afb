// SPDX-License-Identifier: Apache-2.0
// Large products through cuBLASLt, which is loaded when the first Products object is created.
#pragma once

#include <memory>

#include "kernels/cuda/grid.h"

namespace shiftrt::gpu {

// y (m, n) = x (m, k) W' (+ y). W is (n, k), as in checkpoints. All are dense. x and W have the same type; y has that
// type or float32. Accumulation is in float32; float32 operands are not rounded to TF32. Cost: 2 m n k FLOP.
struct MatMulProblem {
  ConstDeviceArray x, w;
  DeviceArray y;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
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
