// SPDX-License-Identifier: Apache-2.0
// The weights of calibration tokens in a fit: none, or [norm][,gradient][,first:W][,massive:W].
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "engine/tally.h"
#include "kernels/row_products.h"

namespace shiftrt {

// The size of the loss's gradient for each token of a text: the mean square of dL/dh over the coordinates of the stream
// behind a layer.
class TokenSizes {
 public:
  // `sizes`: one per token of the batch that follows those that this layer has.
  void Add(int64_t layer, std::vector<float> sizes) { sizes_[layer].push_back(std::move(sizes)); }
  // Throws Error where there are none.
  std::span<const float> Of(int64_t layer, int64_t batch) const;

 private:
  friend struct GradientSizes;
  std::map<int64_t, std::vector<std::vector<float>>> sizes_;  // by layer and batch
};
// Those of a calibration text.
struct GradientSizes {
  TokenSizes fit, heldout;

  // Divides the sizes of each layer by their mean over all tokens, and adds a thousandth: only ratios count, and no
  // token is left out. Throws Error naming a layer whose sizes are all zero or not finite.
  void Scale();
};

struct TokenWeighting {
  // 1 / mean(h_out^2): what follows is an RMSNorm, so what counts is the error relative to the token's own size.
  bool norm = false;
  // Times this for the first token of a sample: where BOS stands, and where attention sinks.
  double first = 1;
  // Times this for tokens with a massive activation: a coordinate of the stream, before or after, that is more than
  // 1000 times the median of the token's coordinates (Sun et al., Massive activations, 2024).
  double massive = 1;
  // Times the square of the gradient of the loss with respect to the token's stream behind the site.
  bool gradient = false;

  bool uniform() const { return !norm && !gradient && first == 1 && massive == 1; }
  // The tokens that are weighted: a batch, which is number `number` of its text, at a site that ends behind `layer`.
  // `sizes`, which only `gradient` needs, are those of the text.
  struct Tokens {
    const Batch& batch;
    int64_t number, layer;
    const TokenSizes* sizes = nullptr;
  };
  // The weights of rows of the stream (h) and of the update (delta) whose products are given, one per row; empty if all
  // tokens have the same weight. Only `massive` copies rows from a GPU.
  std::vector<double> Weights(std::span<const RowProducts> products, const Rows& h, const Rows& delta,
                              const Tokens& tokens) const;
  // The same for an adder. It is called before the rows change.
  RowWeights For(const SiteRows& rows, const Tokens& tokens) const;
};
// Throws UsageError for anything else, and for weights below 0.
TokenWeighting ParseTokenWeighting(const std::string& text);
std::string Format(const TokenWeighting& weighting);

}  // namespace shiftrt
