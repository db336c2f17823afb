// SPDX-License-Identifier: Apache-2.0
// Converts small tensors of any stored type to float32.
#pragma once

#include <iterator>
#include <vector>

#include "runtime/block_types.h"
#include "runtime/tensor.h"

namespace shiftrt {

inline std::vector<float> Widened(const TensorView& tensor) {
  std::vector<float> out(tensor.empty() ? 0 : tensor.elements());
  if (!out.empty()) Widen(tensor.dtype, tensor.data, std::ssize(out), out.data());
  return out;
}

}  // namespace shiftrt
