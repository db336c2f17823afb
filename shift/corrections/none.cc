// SPDX-License-Identifier: Apache-2.0
// Nothing in the removed blocks' place: the pruned model.
#include "shift/corrections/corrections.h"

namespace shiftrt {

FittedSites FitNone(const FitInput& input) {
  FittedSites fitted;
  fitted.adapters.resize(input.sites.size());
  return fitted;
}

}  // namespace shiftrt
