// SPDX-License-Identifier: Apache-2.0
// One pass of the original model over calibration text: ridge sums of any set of sites.
#pragma once

#include <vector>

#include "shift/job.h"
#include "shift/sums/pass.h"
#include "shift/sums/sites.h"

namespace shiftrt {

// The sums of some sites, and how many of the calibration's batches they hold.
struct CalibrationSums {
  std::vector<SiteSums> sites;
  int64_t fit_batches = 0, heldout_batches = 0;

  static CalibrationSums Empty(const std::vector<int64_t>& layers, int64_t hidden);
  std::vector<int64_t> Layers() const;
  // The sites of `layers`, where there is one a layer, ascending. Throws Error naming a layer that is not among them,
  // and those that are.
  std::vector<const SiteSums*> Sites(const std::vector<int64_t>& layers) const;
};

// How many sites' sums the host has memory for (runtime/host_memory.h).
int64_t SitesInMemory(const Context& context, int64_t hidden);
// Throws Error unless those of `sites` fit at once; `advice` says what to do about it.
void CheckMemory(const Context& context, int64_t sites, int64_t hidden, const char* advice);

// Adds the batches `sums` does not hold yet, fitted ones first, in order: so a collection that was interrupted ends
// with the same bits as one that was not (to rounding where GPUs take turns, for sums of sums are added up). The sums
// hold as many batches as they say whenever `checkpoint` saves them, and after Interrupted. Where a device's memory has
// no room for all sites at once they are done in groups, a pass each, which are saved when all are done.
void Collect(const ShiftJob& job, CalibrationSums& sums, Checkpoint* checkpoint = nullptr);

}  // namespace shiftrt
