// SPDX-License-Identifier: Apache-2.0
// Linear residual adapters, the paper's own correction: h += h A + b, fitted to the block's update.
#include "shift/corrections/corrections.h"

namespace shiftrt {

FittedSites FitLra(const FitInput& input) {
  return FitSites(input.job.context, input.sums, input.options, input.job.progress);
}

}  // namespace shiftrt
