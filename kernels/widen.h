// SPDX-License-Identifier: Apache-2.0
// Converts small tensors of any stored type to float32.
#pragma once

#include <vector>

#include "runtime/elements.h"

namespace shiftrt {

inline std::vector<float> Widened(const TensorView& tensor) {
  std::vector<float> out(tensor.empty() ? 0 : tensor.elements());
  WithElements(tensor, [&](const auto* values) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(values[i]);
  });
  return out;
}

}  // namespace shiftrt
