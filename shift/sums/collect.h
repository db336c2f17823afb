// SPDX-License-Identifier: Apache-2.0
// One pass of the original model over calibration text: ridge sums of any set of sites.
#pragma once

#include <vector>

#include "shift/job.h"
#include "shift/sums/pass.h"
#include "shift/sums/sites.h"
#include "shift/sums/streams.h"

namespace shiftrt {

// The sums of some sites, and how many of the calibration's batches they hold.
struct CalibrationSums {
  std::vector<SiteSums> sites;
  int64_t fit_batches = 0, heldout_batches = 0;

  static CalibrationSums Empty(const std::vector<BlockPart>& parts, int64_t hidden);
  std::vector<BlockPart> Parts() const;
  // The sites of `parts`, if there is one site per block or half. Throws Error naming a part without a site, and the
  // parts that have one.
  std::vector<const SiteSums*> Sites(const std::vector<BlockPart>& parts) const;
};

// The number of sites for whose sums the host has memory (runtime/host_memory.h).
int64_t SitesInMemory(const Context& context, int64_t hidden);
// Throws Error unless those of `sites` fit at once; `advice` says what to do about it.
void CheckMemory(const Context& context, int64_t sites, int64_t hidden, const char* advice);

// Adds the batches `sums` does not hold yet, fitted ones first, in order: so a collection that was interrupted ends
// with the same bits as one that was not (to rounding where GPUs take turns, for sums of sums are added up). The sums
// hold as many batches as they say whenever `checkpoint` saves them, and after Interrupted. Where a device's memory has
// no room for all sites at once, they are processed in groups with one pass each, and saved when all are done. With
// `start`, the pass begins at the block before which it has streams; it begins with the tokens for a text of which it
// has none.
void Collect(const ShiftJob& job, CalibrationSums& sums, PassCheckpoint* checkpoint = nullptr,
             const StartStreams* start = nullptr);

}  // namespace shiftrt
