// SPDX-License-Identifier: Apache-2.0
// The weights of calibration tokens in a fit: none, or [norm][,first:W][,massive:W].
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "engine/tally.h"
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
  // The weights of rows of the stream (h) and of the update (delta) of a batch, whose products are given, one per row;
  // empty if all tokens have the same weight. Only `massive` copies rows from a GPU.
  std::vector<double> Weights(std::span<const RowProducts> products, const Rows& h, const Rows& delta,
                              const Batch& batch) const;
  // The same for an adder. It is called before the rows change.
  RowWeights For(const SiteRows& rows, const Batch& batch) const;
};
// Throws UsageError for anything else, and for weights below 0.
TokenWeighting ParseTokenWeighting(const std::string& text);
std::string Format(const TokenWeighting& weighting);

}  // namespace shiftrt
