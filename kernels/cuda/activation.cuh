// SPDX-License-Identifier: Apache-2.0
// The activation functions of MLPs, and their derivatives.
#pragma once

#include "kernels/cuda/platform.cuh"
#include "runtime/activation.h"

namespace shiftrt::gpu {

template <Activation kActivation>
SHIFTRT_DEVICE float Activate(float x) {
  if constexpr (kActivation == Activation::kSilu) return Silu(x);
  if constexpr (kActivation == Activation::kGeluTanh) return GeluTanh(x);
  if constexpr (kActivation == Activation::kGelu) return 0.5f * x * (1 + Erf(0.707106781f * x));
  if constexpr (kActivation == Activation::kRelu2) return x < 0 ? 0 : x * x;  // keeps a NaN
}

// An activation and its derivative at x.
struct Activated {
  float value, slope;
};
template <Activation kActivation>
SHIFTRT_DEVICE Activated ActivateWithSlope(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    const float sigmoid = 1 / (1 + Exp(-x));
    return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), of which 2 u' is the last factor's slope.
    const float half = 1 / (1 + Exp(x * (-1.59576912f - 0.0713548163f * x * x)));
    return {x * half, half + x * half * (1 - half) * (1.59576912f + 0.2140644489f * x * x)};
  } else if constexpr (kActivation == Activation::kGelu) {
    // x P(x), P the distribution of the normal distribution.
    const float share = 0.5f * (1 + Erf(0.707106781f * x));
    return {x * share, share + x * 0.398942280f * Exp(-0.5f * x * x)};
  } else {
    return {Activate<kActivation>(x), x < 0 ? 0 : 2 * x};
  }
}

// Calls body(std::integral_constant<Activation, activation>()).
template <typename Body>
void WithActivation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kSilu: return body(std::integral_constant<Activation, Activation::kSilu>());
    case Activation::kGeluTanh: return body(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kGelu: return body(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kRelu2: return body(std::integral_constant<Activation, Activation::kRelu2>());
  }
}

SHIFTRT_DEVICE float Sigmoid(float x) { return Quotient(1.0f, 1 + Exp(-x)); }

// The clamped unit of gpt-oss (runtime/activation.h); a NaN stays one.
SHIFTRT_DEVICE float Below(float x, float limit) { return x > limit ? limit : x; }
SHIFTRT_DEVICE float Within(float x, float limit) { return x < -limit ? -limit : Below(x, limit); }
SHIFTRT_DEVICE float ClampedUnit(const ClampedSwiGlu& unit, float gate, float up) {
  const float g = Below(gate, unit.limit);
  return (Within(up, unit.limit) + 1) * g * Sigmoid(unit.alpha * g);
}

}  // namespace shiftrt::gpu
