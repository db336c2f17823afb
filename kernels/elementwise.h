// The memory-bound steps between products.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// out (tokens, hidden) = rows `tokens` of table (vocab, hidden), widened to float32. Throws Error for an id outside it.
void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out);

// gate = silu(gate) * up, in place (Shazeer 2020): (tokens, intermediate). silu(x) = x / (1 + exp(-x)).
void SwiGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up);

// y += x.
void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y);

}  // namespace shiftrt
