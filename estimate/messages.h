// SPDX-License-Identifier: Apache-2.0
// Bytes that one of several processes sends (ProcessWork::sent), from shapes alone: the messages of runtime/processes.h
// and of the passes in shift/sums/.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "estimate/main_job.h"

namespace shiftrt {

// One process among many.
struct Place {
  int rank = 0, size = 1;
};

// Bytes of Processes::Broadcast, and of Processes::Gather, to which process r gives payload(r) bytes.
int64_t BroadcastBytes(const Place& place, int from, int64_t payload);
int64_t GatherBytes(const Place& place, const std::function<int64_t(int)>& payload);

// A batch of whole sequences.
struct BatchShape {
  int64_t tokens = 0, sequences = 0;
};

// Bytes of a pass that collects ridge sums of so many sites with adapters, and of one that measures the influence of
// every block: dealt out, with the exchange at the end.
struct Collection {
  std::vector<BatchShape> batches;
  int64_t sites = 0, hidden = 0;
  bool weighted = false;  // tokens have weights
  int64_t channel = 0;    // the channels that this program has made before
};
int64_t CollectBytes(const Place& place, const Collection& collection);
int64_t InfluenceBytes(const Place& place, const std::vector<BatchShape>& batches, int64_t layers);

// Bytes of sharing the adapters that were fitted for so many sites, with their reports. `rank` 0: the full map. About,
// for the texts of warnings do not count.
int64_t ShareAdaptersBytes(const Place& place, int64_t sites, int64_t hidden, int64_t rank);
// Bytes of sharing one number per batch.
int64_t ShareLossesBytes(const Place& place, int64_t batches);

// Bytes of the main job without its messages of less than a kilobyte, with which the processes compare what they have.
int64_t MainJobBytes(const Place& place, const MainJob& job, const JobOutline& outline);

}  // namespace shiftrt
