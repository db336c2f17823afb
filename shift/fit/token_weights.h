// SPDX-License-Identifier: Apache-2.0
// The weights of calibration tokens in a fit: none, or [norm][,first:W][,massive:W].
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
  // The weights, one per row of the stream before (h) and of the update (delta), whose products are given; empty if all
  // tokens have the same weight. `offsets`: the starts of the samples (Batch::offsets). Only `massive` copies rows from
  // a GPU.
  std::vector<double> Weights(std::span<const RowProducts> products, const Rows& h, const Rows& delta,
                              std::span<const int64_t> offsets) const;
};
// Throws UsageError for anything else, and for weights below 0.
TokenWeighting ParseTokenWeighting(const std::string& text);
std::string Format(const TokenWeighting& weighting);

}  // namespace shiftrt
