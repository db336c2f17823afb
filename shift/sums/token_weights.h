// SPDX-License-Identifier: Apache-2.0
// The weights of calibration tokens in a fit: none, or [norm][,gradient][,first:W][,massive:W].
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "kernels/row_products.h"

namespace shiftrt {

// How much the loss feels each token: the mean square of dL/dh over the coordinates of the stream behind a layer.
class GradientSizes {
 public:
  // `sizes`: one per token of the batch, which is known by its address.
  void Set(int64_t layer, const Batch& batch, std::vector<float> sizes) { sizes_[{layer, &batch}] = std::move(sizes); }
  // Divides the sizes of each layer by their mean over all tokens, and adds a thousandth: only ratios count, and no
  // token is left out. Throws Error naming a layer whose sizes are all zero or not finite.
  void Scale();
  // Throws Error where there are none.
  std::span<const float> Of(int64_t layer, const Batch& batch) const;

 private:
  std::map<std::pair<int64_t, const Batch*>, std::vector<float>> sizes_;
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
  std::shared_ptr<const GradientSizes> sizes = nullptr;  // with `gradient`

  bool uniform() const { return !norm && !gradient && first == 1 && massive == 1; }
  // The weights, one per row of the stream before (h) and of the update (delta), whose products are given; empty if all
  // tokens have the same weight. The rows are those of `batch`, and the stream behind `layer` is h + delta. Only
  // `massive` copies rows from a GPU.
  struct Tokens {
    const Batch& batch;
    int64_t layer;
  };
  std::vector<double> Weights(std::span<const RowProducts> products, const Rows& h, const Rows& delta,
                              const Tokens& tokens) const;
};
// Throws UsageError for anything else, and for weights below 0.
TokenWeighting ParseTokenWeighting(const std::string& text);
std::string Format(const TokenWeighting& weighting);

}  // namespace shiftrt
