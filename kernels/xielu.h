// SPDX-License-Identifier: Apache-2.0
// The activation xIELU, with numbers of each layer (Huang and Schlag 2024, "Deriving Activation Functions Using
// Integration"; behaves as XIELUActivation of transformers):
//   f(x) = a x^2 + beta x                          for x > 0, with a = softplus(alpha_p),
//   f(x) = b (expm1(min(x, eps)) - x) + beta x     for others, with b = beta + softplus(alpha_n).
#pragma once

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// As checkpoints have them. eps is a little below 0.
struct XieluNumbers {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

// x = f(x), in place: (tokens, units).
void Xielu(const Context& context, const XieluNumbers& numbers, MatrixView<float> x);

struct XieluNumberGradients {
  double alpha_p = 0, alpha_n = 0;
};
// Its gradients, of which those of the numbers are returned. x is the input of that call; dx holds the gradient of its
// result and is replaced by that of x. Results do not depend on the number of threads.
XieluNumberGradients XieluGradient(const Context& context, const XieluNumbers& numbers, MatrixView<const float> x,
                                   MatrixView<float> dx);

}  // namespace shiftrt
