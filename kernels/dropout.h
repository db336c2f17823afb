// SPDX-License-Identifier: Apache-2.0
// Dropout (Srivastava et al. 2014) with a counter-based generator: a key and the index of an element alone decide
// whether it is dropped. A forward pass that is repeated therefore drops the same elements, on every device and with
// any number of threads, and no mask is stored.
#pragma once

#include <cstdint>

#include "runtime/context.h"
#include "runtime/random.h"
#include "runtime/tensor.h"

namespace shiftrt {

struct Dropout {
  uint64_t key = 0;
  float probability = 0;  // the probability, in [0, 1), that an element is dropped

  // Element i is dropped if Bits(key, i) is below this.
  uint32_t Threshold() const { return static_cast<uint32_t>(static_cast<double>(probability) * 0x1p32); }
  // The factor of the elements that are not dropped.
  float Scale() const { return 1 / (1 - probability); }
  // 32 uniform bits for element `i`: the high half of output number i of SplitMix64, seeded with the key. Output number
  // p of the key of an object is the key of its part p.
  static constexpr uint32_t Bits(uint64_t key, uint64_t i) { return static_cast<uint32_t>(SplitMix64(key, i) >> 32); }
};

// out (m, n) = x with element (i, j), of index i n + j, dropped or scaled. out may be x. The gradient is the same
// function: it maps the gradient of out to that of x.
void ApplyDropout(const Context& context, const Dropout& dropout, MatrixView<const float> x, MatrixView<float> out);

}  // namespace shiftrt
