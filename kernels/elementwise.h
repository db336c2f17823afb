// SPDX-License-Identifier: Apache-2.0
// The memory-bound operations between matrix products.
#pragma once

#include <span>

#include "runtime/activation.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// out (tokens, hidden) = rows `tokens` of table (vocab, hidden), widened to float32, times `scale`. Throws Error for an
// id outside the table.
void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out,
           float scale = 1);

// gate = activation(gate) * up, in place (Shazeer 2020): (tokens, intermediate). `up` is empty for an MLP without gate,
// whose input is `gate` then. The activations (runtime/activation.h) are kSilu and kGeluTanh; without gate, all.
void GatedUnit(const Context& context, Activation activation, MatrixView<float> gate, MatrixView<const float> up = {});
// Its gradients. gate and up are the inputs of that call. dgate holds the gradient of its result and is replaced by
// that of gate; dup receives that of up, and is empty if up is. All are (tokens, intermediate).
void GatedUnitGradient(const Context& context, Activation activation, MatrixView<const float> gate,
                       MatrixView<const float> up, MatrixView<float> dgate, MatrixView<float> dup);

// gate = that unit of runtime/activation.h, in place, and its gradients: as above. At a limit, the slope is that inside
// it, as in PyTorch.
void ClampedGatedUnit(const Context& context, const ClampedSwiGlu& unit, MatrixView<float> gate,
                      MatrixView<const float> up);
void ClampedGatedUnitGradient(const Context& context, const ClampedSwiGlu& unit, MatrixView<const float> gate,
                              MatrixView<const float> up, MatrixView<float> dgate, MatrixView<float> dup);

// x = sigmoid(gate) * x, in place: the gates of an attention's heads (Qwen 3.5). Both are (tokens, n).
void SigmoidGate(const Context& context, MatrixView<const float> gate, MatrixView<float> x);
// Its gradients. gate and x are the inputs of that call. dy holds the gradient of its result and is replaced by that of
// x; dgate receives that of gate.
void SigmoidGateGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> x,
                         MatrixView<float> dy, MatrixView<float> dgate);

// x = sigmoid(gate) * x, in place, with one gate for each row: (tokens, 1) and (tokens, n).
void SigmoidGateRows(const Context& context, MatrixView<const float> gate, MatrixView<float> x);
// Its gradients, from its result y. dy holds the gradient of y and is replaced by that of x; dgate receives that of
// gate.
void SigmoidGateRowsGradient(const Context& context, MatrixView<const float> gate, MatrixView<const float> y,
                             MatrixView<float> dy, MatrixView<float> dgate);

// x = cap * tanh(x / cap), in place: the soft cap of logits (Gemma 2). cap > 0.
void SoftCap(const Context& context, float cap, MatrixView<float> x);

// y += x.
void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y);

}  // namespace shiftrt
