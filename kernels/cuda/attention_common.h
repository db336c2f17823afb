// What both forms of attention check and choose by.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention.h"

namespace shiftrt::gpu {

inline constexpr float kLog2E = 1.44269504f;

inline void RequireShape(const AttentionShape& shape) {
  Require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "attention",
          "a number of heads that is a multiple of the key-value heads", shape.heads);
}

// Calls body(std::integral_constant<int, head_dim>()).
template <typename Body>
void WithHeadDim(int head_dim, Body&& body) {
  switch (head_dim) {
    case 64: return body(std::integral_constant<int, 64>());
    case 80: return body(std::integral_constant<int, 80>());
    case 96: return body(std::integral_constant<int, 96>());
    case 128: return body(std::integral_constant<int, 128>());
    case 256: return body(std::integral_constant<int, 256>());
    default: Refuse("attention", "a head dimension of 64, 80, 96, 128 or 256", head_dim);
  }
}

}  // namespace shiftrt::gpu
