// SPDX-License-Identifier: Apache-2.0
// The last projection before a removed run, fitted as refit fits it, and an adapter on the normed stream in the run's
// place, h + norm(h) A + b, fitted to what the new projection leaves. The two are not solved for at once, as in joint:
// the norm of the stream is no linear function of the change of the projection. In joint, the projection may make the
// stream large and the adapter small again, which no adapter on the norm could do.
#include "shift/corrections/corrections.h"

namespace shiftrt {

FittedSites FitRefit(const FitInput& input);
FittedSites FitNormLra(const FitInput& input);

FittedSites FitNormRefit(const FitInput& input) {
  return input.sums.front()->input == SiteInput::kNormed ? FitNormLra(input) : FitRefit(input);
}

}  // namespace shiftrt
