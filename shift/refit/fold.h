// SPDX-License-Identifier: Apache-2.0
// Corrections that change a kept block's own weights, so that the architecture stays stock.
#pragma once

#include <memory>
#include <vector>

#include "models/own_tensors.h"
#include "runtime/context.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// The values of a float tensor, whose further sides are one.
Matrix<double> InFloat64(const TensorView& tensor);

// Throws UsageError where no kept block stands before a site. `runs`: ascending.
void CheckBlockBefore(const std::vector<Site>& runs);

// `block` with T (hidden, hidden) after its MLP: the output m becomes m T (row vectors). Stored in the types it had.
std::shared_ptr<const BlockWeights> FoldIntoDown(const Context& context, const BlockWeights& block,
                                                 MatrixView<const double> t);

}  // namespace shiftrt
