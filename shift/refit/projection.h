// SPDX-License-Identifier: Apache-2.0
// The last matrix of a half of a block, fitted again by a ridge regression around the weights that it has.
#pragma once

#include <memory>

#include "engine/decoder.h"
#include "shift/fit/fit.h"

namespace shiftrt {

// y = x W' is added to the stream. The input x is tapped.
struct Projection {
  const char* name;
  Halves half;
  TapPoint input;
  TensorView BlockWeights::*weight;
  TensorView BlockWeights::*bias;  // empty in most families

  // The most inputs that it has in a block of the model, and those that it has in this block.
  int64_t Inputs(const ModelConfig& config) const {
    return half == Halves::kMlp ? config.intermediate : config.heads_dim();
  }
  int64_t Inputs(const BlockWeights& block) const { return (block.*weight).cols(); }
  // The numbers per token of `input` (SiteInput::kActivation or kStreamAndActivation).
  int64_t Width(SiteInput input, const ModelConfig& config) const {
    return Inputs(config) + (input == SiteInput::kStreamAndActivation ? config.hidden : 0);
  }
  int64_t Width(SiteInput input, const BlockWeights& block) const {
    return Inputs(block) + (input == SiteInput::kStreamAndActivation ? (block.*weight).rows() : 0);
  }
};
inline constexpr Projection kOutputProjection = {"o", Halves::kAttention, TapPoint::kHeads, &BlockWeights::o,
                                                 &BlockWeights::o_bias};
inline constexpr Projection kDownProjection = {"down", Halves::kMlp, TapPoint::kActivation, &BlockWeights::down,
                                               &BlockWeights::down_bias};
// The block a projection belongs to, as it runs.
using BlockPtr = std::shared_ptr<const BlockWeights>;

struct RefittedBlock {
  BlockPtr block;
  SiteReport report;
};

// `sums`: of the projection's inputs (n), and of what its output should have in addition (d). With X the minimiser of
// |D - H X|^2 + lambda |X|^2, W' = W + X' in the type that W has, so a large lambda leaves W. A bias, where the block
// has one, is fitted with it, without a penalty. The report measures W' as it is stored. Throws what SolveRidge throws.
RefittedBlock RefitProjection(const Context& context, const SiteSums& sums, const RidgeOptions& options,
                              const Projection& projection, const BlockPtr& block);

// The change that `after` makes to the projection of `before`, as a map of its inputs (n, d).
Matrix<double> ChangeOf(const Projection& projection, const BlockWeights& before, const BlockWeights& after);

}  // namespace shiftrt
