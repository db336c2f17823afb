// SPDX-License-Identifier: Apache-2.0
// Dispatch from an element type known at run time to a C++ type, and copies of tensors of any type in float32.
#pragma once

#include <type_traits>
#include <vector>

#include "runtime/block_types.h"
#include "runtime/check.h"
#include "runtime/dtype.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Calls visit(std::type_identity<T>()) with the C++ type of `type`. Throws Error for float64, which no tensor of a
// model has, and for quantised types, whose elements have no address.
template <typename Visit>
decltype(auto) WithType(DType type, const Visit& visit) {
  switch (type) {
    case DType::kFloat32: return visit(std::type_identity<float>());
    case DType::kFloat16: return visit(std::type_identity<Float16>());
    case DType::kBFloat16: return visit(std::type_identity<BFloat16>());
    default: break;
  }
  Fail("a tensor of type {}, expected float32, float16 or bfloat16", Name(type));
}

// Calls visit with a pointer to the tensor's elements, const T* for elements of type T. Throws as WithType.
template <typename Visit>
decltype(auto) WithElements(const TensorView& tensor, const Visit& visit) {
  return WithType(tensor.dtype, [&]<typename T>(std::type_identity<T>) -> decltype(auto) {
    return visit(static_cast<const T*>(tensor.data));
  });
}

// Copies row `row` of a tensor of any type to `out`. A vector is one row.
inline void WidenRow(const TensorView& tensor, int64_t row, float* out) {
  const int64_t count = tensor.shape.size() == 1 ? tensor.shape[0] : tensor.elements() / tensor.rows();
  const int64_t row_bytes = BytesOf(tensor.dtype, count);
  Widen(tensor.dtype, static_cast<const std::byte*>(tensor.data) + row * row_bytes, count, out);
}

// Calls use(row, values) for each row of a matrix, or for the one row of a vector, with its elements in float32.
template <typename Use>
void ForEachWidenedRow(const TensorView& tensor, Use&& use) {
  const int64_t count = tensor.shape.size() == 1 ? 1 : tensor.rows();
  std::vector<float> values(count == 0 ? 0 : tensor.elements() / count);
  for (int64_t row = 0; row < count; ++row) {
    WidenRow(tensor, row, values.data());
    use(row, values);
  }
}

}  // namespace shiftrt
