// SPDX-License-Identifier: Apache-2.0
// Which calibration tokens count for how much in a fit: none, or [norm][,first:W][,massive:W].
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/rows.h"
#include "kernels/row_products.h"

namespace shiftrt {

struct TokenWeighting {
  // 1 / mean(h_out^2): what follows is an RMSNorm, so what counts is the error relative to the token's own size.
  bool norm = false;
  // Times this for the first token of a sample: where BOS stands, and where attention sinks.
  double first = 1;
  // Times this for tokens with a massive activation: a coordinate of the stream, before or after, that is more than
  // 1000 times the median of the token's coordinates (Sun et al., Massive activations, 2024).
  double massive = 1;

  bool uniform() const { return !norm && first == 1 && massive == 1; }
  // One a row of the stream before (h) and of what is added to it, whose products are those given; empty where all
  // tokens count alike. `offsets`: where the samples begin (Batch::offsets). Only `massive` has rows brought over from
  // a GPU.
  std::vector<double> Weights(std::span<const RowProducts> products, const Rows& h, const Rows& delta,
                              std::span<const int64_t> offsets) const;
};
// Throws UsageError for anything else, and for weights below 0.
TokenWeighting ParseTokenWeighting(const std::string& text);
std::string Format(const TokenWeighting& weighting);

}  // namespace shiftrt
