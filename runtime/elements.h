// SPDX-License-Identifier: Apache-2.0
// Dispatch from an element type known at run time to a C++ type.
#pragma once

#include <type_traits>

#include "runtime/check.h"
#include "runtime/dtype.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Calls visit(std::type_identity<T>()) with the C++ type of `type`. Throws Error for float64, because no tensor of a
// model has that type.
template <typename Visit>
decltype(auto) WithType(DType type, const Visit& visit) {
  switch (type) {
    case DType::kFloat32: return visit(std::type_identity<float>());
    case DType::kFloat16: return visit(std::type_identity<Float16>());
    case DType::kBFloat16: return visit(std::type_identity<BFloat16>());
    case DType::kFloat64: break;
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

}  // namespace shiftrt
