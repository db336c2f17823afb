// SPDX-License-Identifier: Apache-2.0
// The weights of calibration tokens in a fit: none, or [norm][,first:W][,massive:W].
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/collector.h"
#include "engine/decoder.h"
#include "include/shiftrt/recipe.h"
#include "kernels/row_products.h"

namespace shiftrt {

// After `norm` follows an RMSNorm, so that the error relative to the token's own size counts. The first token of a
// sample is where BOS stands, and where attention sinks. A token has a massive activation if a coordinate of its
// stream, before or after, is more than 1000 times the median of its coordinates (Sun et al., Massive activations,
// 2024).
//
// The weights of rows of the stream (h) and of the update (delta) of a batch, whose products are given, one per row;
// empty if all tokens have the same weight. Only `massive` copies rows from a GPU.
std::vector<double> WeightsOfRows(const TokenWeights& rule, std::span<const RowProducts> products, const Rows& h,
                                  const Rows& delta, const Batch& batch);
// The same for an adder, which calls it before the rows change. `rule` and `batch` must outlive the result.
RowWeights RowWeightsOf(const TokenWeights& rule, const SiteRows& rows, const Batch& batch);

}  // namespace shiftrt
