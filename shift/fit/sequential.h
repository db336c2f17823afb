// SPDX-License-Identifier: Apache-2.0
// Sites fitted one after another, each on the stream that the corrections before it leave.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "shift/fit/fit.h"
#include "shift/job.h"
#include "shift/sums/streams.h"

namespace shiftrt {

// Fits one site from its sums.
using SiteFit = std::function<FittedSites(const SiteSums& site, Progress& progress)>;

// `mode`: kSequential or kDrift. Cost: one pass of the model (kDrift: two) and a fit between any two sites. The stream
// of the whole calibration text is held while it goes from site to site: tokens x hidden x 4 bytes, twice that for
// kDrift. `start`: the streams of the job's text before the first site, or before an earlier block, where they are
// already there; it takes their memory. Throws Error where the host has no memory for the sums of a site.
FittedSites FitInSequence(const ShiftJob& job, const std::vector<Site>& sites, Calibration mode,
                          const TokenWeighting& weighting, const SiteFit& fit,
                          std::optional<StartStreams> start = std::nullopt);

}  // namespace shiftrt
