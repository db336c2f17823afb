// SPDX-License-Identifier: Apache-2.0
// The products of gradients on a GPU (engine/cuda/ops.cc), and the 16-bit copies that they read.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>

#include "engine/cuda/call.h"
#include "engine/cuda/operands.h"
#include "engine/cuda/rounded.h"
#include "engine/cuda/scratch.h"
#include "engine/ops.h"
#include "kernels/cuda/rowwise.h"

namespace shiftrt {

inline constexpr int64_t kAligned = 8;  // 16-bit rows that the tensor cores take start at multiples of 16 bytes

// An operand of a product. Quantised weights are expanded just before a product, only the rows that it reads.
struct Side {
  gpu::ConstDeviceArray array;
  int64_t stride = 0;
  int64_t quantised_rows = 0, first = 0;  // the rows of the whole quantised matrix, and the first that is meant

  Side From(int64_t row) const {
    if (quantised_rows > 0) return {array, stride, quantised_rows, first + row};
    return {{static_cast<const std::byte*>(array.data) + row * stride * static_cast<int64_t>(SizeOf(array.dtype)),
             array.dtype},
            stride};
  }
};

// A model and the call in progress on a GPU, with the products of gradients: in 16 bits where the model is, and all
// rows of both operands are aligned, otherwise in float32.
class GradientProducts {
 protected:
  GradientProducts(const Context& context, std::shared_ptr<const Weights> weights)
      : call_(context, weights),
        operands_(std::move(weights), call_.device()),
        config_(call_.config()),
        spec_(call_.spec()),
        stream_(call_.stream()),
        dtype_(call_.dtype()) {}

  // Returns true if a product of operands with rows of these lengths is computed in 16 bits.
  bool Narrows(std::initializer_list<int64_t> widths) const {
    return dtype_ != DType::kFloat32 &&
           std::all_of(widths.begin(), widths.end(), [](int64_t width) { return width % kAligned == 0; });
  }
  // Rows that a kernel writes and products read. Those that products read in 16 bits it also writes in 16 bits.
  gpu::WrittenRows Out(DeviceMatrix<float> rows) {
    const MatrixView<float> x = Written(rows);
    if (rows.empty() || !Narrows({x.cols})) return x;
    return {x, static_cast<BFloat16*>(rounded_.For(stream_, x, dtype_).data)};
  }
  // Rows that the kernel launched next writes: no copy of them is valid after it.
  MatrixView<float> Written(DeviceMatrix<float> x) {
    rounded_.Written(x.on_gpu());
    return x.on_gpu();
  }
  Side Take(DeviceMatrix<const float> x, bool narrow) { return Take(x.on_gpu(), narrow); }
  Side Take(MatrixView<const float> x, bool narrow) {
    if (!narrow) return {{x.data, DType::kFloat32}, x.stride};
    return {rounded_.Of(stream_, x, dtype_), x.cols};
  }
  // A stored matrix in 16 bits stays as it is; Multiply() widens it where the product is not narrow.
  Side Take(const Operand& w, bool narrow) {
    if (w.is_trained()) return Take(w.trained(), narrow);
    const StoredMatrix stored = operands_.Matrix(w.stored());
    if (gpu::TakesBlocks(stored.array.dtype))
      return {stored.array, w.stored().cols(), stored.matrix_rows, stored.first};
    if (stored.array.dtype != DType::kFloat32) return {stored.array, w.stored().cols()};
    const auto* const floats = static_cast<const float*>(stored.array.data);
    return Take(MatrixView<const float>(floats, w.stored().rows(), w.stored().cols()), narrow);
  }
  static int64_t ColsOf(const Operand& w) { return w.is_trained() ? w.trained().cols : w.stored().cols(); }

  // y (+)= x W' with the sizes and the forms of `problem`.
  void Multiply(gpu::MatMulProblem problem, const Side& x, const Side& w, DeviceMatrix<float> y) {
    Multiply(problem, x, w, Written(y));
  }
  void Multiply(gpu::MatMulProblem problem, const Side& x, const Side& w, MatrixView<float> y) {
    problem.x = x.array;
    problem.w = w.array;
    const int64_t read = problem.w_transposed ? problem.k : problem.n;
    if (w.quantised_rows > 0)
      problem.w = call_.device()->Expanded({w.array, w.quantised_rows, w.first, read}, w.stride);
    if (problem.x.dtype == DType::kFloat32 && problem.w.dtype != DType::kFloat32) {
      const MatrixView<float> wide(widened_.Floats(stream_, read * w.stride), read, w.stride);
      gpu::CopyRows(stream_, {problem.w, read, w.stride}, wide);
      problem.w = {wide.data, DType::kFloat32};
    }
    problem.x_stride = x.stride;
    problem.w_stride = w.stride;
    problem.y = {y.data, DType::kFloat32};
    problem.y_stride = y.stride;
    call_.products().MatMul(problem);
    rounded_.Written(y);
  }

  CudaCall call_;
  DeviceOperands operands_;
  const ModelConfig& config_;
  const BlockSpec& spec_;
  const gpu::Stream stream_;
  const DType dtype_;
  RoundedCopies rounded_;

 private:
  Scratch widened_;
};

}  // namespace shiftrt
