// SPDX-License-Identifier: Apache-2.0
// Exact merging of adapters that stand next to each other with no block between (paper, section on extensions).
#pragma once

#include <string>

#include "include/shiftrt/recipe.h"
#include "models/plan.h"
#include "runtime/context.h"

namespace shiftrt {

// full: M = M_1 M_2 ... M_k, b = b_1 M_2...M_k + ... + b_k as one d x d map a run of sites. lowrank: M - I has rank at
// most the sum of the ranks and stays factored, P (d, sum r) and Q (sum r, d), with no d x d matrix. Composed in
// float64. Runs of one adapter are left as they are; a full adapter in a run makes lowrank fall back to full for that
// run.
DepthPlan MergeAdapters(const DepthPlan& plan, Merge merge, const Context& context = Context::Default());

}  // namespace shiftrt
