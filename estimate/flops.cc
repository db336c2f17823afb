// SPDX-License-Identifier: Apache-2.0
#include "estimate/flops.h"

#include <algorithm>

#include "models/block_tensors.h"
#include "runtime/linalg/large.h"

namespace shiftrt {

namespace {

double ProductFlopsPerToken(const Weights& weights, const BlockPart& part) {
  const MixtureSpec& mixture = weights.config.block.mixture;
  double elements = 0;
  ForEachTensor(weights.blocks[part.layer], part.halves, [&](const BlockTensor& row, const TensorView& tensor) {
    const double share =
        row.expert < 0 ? 1 : static_cast<double>(mixture.active) / static_cast<double>(mixture.experts);
    if (row.kind == BlockTensor::Kind::kMatrix) elements += share * static_cast<double>(tensor.elements());
  });
  return 2 * elements;
}

// Pairs of a query and a key that it sees; `window` as BlockSpec::Window.
double VisiblePairs(int64_t length, int64_t window) {
  const auto all = static_cast<double>(length);
  const auto seen = window == 0 ? all : static_cast<double>(std::min(length, window));
  return seen * (seen + 1) / 2 + (all - seen) * seen;
}

double Cube(int64_t n) { return static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n); }

}  // namespace

double BlockFlopsPerToken(const Weights& weights) {
  double flops = 0;
  for (int64_t layer = 0; layer < weights.config.layers; ++layer) flops += ProductFlopsPerToken(weights, layer);
  return flops;
}

double BlockFlops(const Weights& weights, const BlockPart& part, const Sequences& text) {
  const double products = ProductFlopsPerToken(weights, part) * static_cast<double>(text.tokens());
  if (!RunsAttention(part.halves)) return products;
  const ModelConfig& config = weights.config;
  if (config.block.MixerOf(part.layer) == Mixer::kGatedDelta) {
    const GatedDeltaShape& delta = config.block.delta;  // kernels/gated_delta.h
    const int64_t per_token = 7 * delta.state_floats() + 2 * delta.channels() * delta.conv_width;
    return products + static_cast<double>(per_token) * static_cast<double>(text.tokens());
  }
  if (config.block.MixerOf(part.layer) == Mixer::kShortConvolution) {
    const ConvolutionShape& convolution = config.block.convolution;  // kernels/short_convolution.h
    return products +
           static_cast<double>((2 * convolution.width + 2) * convolution.channels) * static_cast<double>(text.tokens());
  }
  return products + 4 * static_cast<double>(config.query_dim()) * static_cast<double>(text.count) *
                        VisiblePairs(text.length, config.block.Window(part.layer));
}

double HeadFlops(const ModelConfig& config, int64_t rows) {
  return 2 * static_cast<double>(rows) * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
}

double RidgeSumsFlops(int64_t inputs, int64_t hidden, int64_t tokens) {
  return static_cast<double>(tokens) * static_cast<double>(inputs) * static_cast<double>(inputs + 2 * hidden);
}

double SolveFlops(const LambdaSpec& lambda, int64_t inputs, int64_t hidden) {
  const double product = 2 * static_cast<double>(inputs) * static_cast<double>(inputs) * static_cast<double>(hidden);
  switch (lambda.kind) {
    case LambdaSpec::Kind::kAbsolute:
    case LambdaSpec::Kind::kRelative: return Cube(inputs) / 3 + product;  // Cholesky
    case LambdaSpec::Kind::kGcv:
      // A tridiagonal form, the rotation of the right sides, and a Cholesky factorization.
      if (linalg::PrefersTridiagonal(inputs, hidden)) return (4.0 / 3 + 1.0 / 3) * Cube(inputs) + 2 * product;
      return EigenFlops(inputs) + 2 * product;
    case LambdaSpec::Kind::kHoldout: return EigenFlops(inputs) + 4 * product + 4 * Cube(inputs);
  }
  return 0;
}

double ReduceFlops(const RankSpec& rank, int64_t hidden) {
  const bool full = rank.kind == RankSpec::Kind::kFull;
  const int64_t r = rank.kind == RankSpec::Kind::kFixed ? rank.rank : hidden;
  const double measured = 2 * 4 * static_cast<double>(hidden) * static_cast<double>(hidden) * static_cast<double>(r);
  return (full ? 0 : FactorizeFlops(hidden)) + measured;  // on fitted and on held-out tokens
}

}  // namespace shiftrt
