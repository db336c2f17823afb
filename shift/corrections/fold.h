// Corrections that change a kept block's own weights, so that the architecture stays stock.
#pragma once

#include <memory>
#include <vector>

#include "models/weights.h"
#include "runtime/context.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// The original plan without `sites`, folded[i] in place of the block before sites[i].
DepthPlan FoldedPlan(int64_t layers, const std::vector<Site>& sites,
                     const std::vector<std::shared_ptr<const BlockWeights>>& folded);
// Throws UsageError where no kept block stands before a site.
void CheckBlockBefore(const std::vector<Site>& runs);

// `block` with T (hidden, hidden) behind its MLP: the output m becomes m T (row vectors). Stored in the types it had.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t);

// LaCo (Yang, Cao, Zhao, 2024), equation of RDSC merging: theta + sum over the removed blocks of (theta_k - theta), for
// every tensor of the block before them. Its layers are whichever were selected; LaCo's own search is not done.
DepthPlan FoldLaco(const Weights& weights, const std::vector<Site>& runs);

}  // namespace shiftrt
