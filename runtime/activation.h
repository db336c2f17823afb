// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shiftrt {

// The activation functions of MLPs.
enum class Activation : uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): "gelu_pytorch_tanh", "gelu_new"
  kGelu,      // x / 2 (1 + erf(x / sqrt(2))): "gelu"
  kRelu2,     // max(x, 0)^2: "relu2"
};

// The gated unit of gpt-oss: (u + 1) g / (1 + exp(-alpha g)), where g is the gate, and at most `limit`, and u the up
// projection between -limit and limit. Source: transformers, modeling_gpt_oss.py, GptOssExperts.
struct ClampedSwiGlu {
  float alpha = 1.702f;
  float limit = 0;  // 0: the model has no such unit

  bool operator==(const ClampedSwiGlu&) const = default;
};

}  // namespace shiftrt
