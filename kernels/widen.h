// Small tensors of any stored type as float32.
#pragma once

#include <vector>

#include "runtime/check.h"
#include "runtime/tensor.h"

namespace shiftrt {

inline std::vector<float> Widened(const TensorView& tensor) {
  std::vector<float> out(tensor.empty() ? 0 : tensor.elements());
  for (size_t i = 0; i < out.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kFloat32: out[i] = static_cast<const float*>(tensor.data)[i]; break;
      case DType::kFloat16: out[i] = static_cast<float>(static_cast<const Float16*>(tensor.data)[i]); break;
      case DType::kBFloat16: out[i] = static_cast<float>(static_cast<const BFloat16*>(tensor.data)[i]); break;
      case DType::kFloat64: Fail("float64 tensors are not computed with");
    }
  }
  return out;
}

}  // namespace shiftrt
