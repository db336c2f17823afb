// SPDX-License-Identifier: Apache-2.0
#include "estimate/messages.h"

#include <algorithm>

#include "engine/exchanged_collector.h"
#include "kernels/row_products.h"
#include "shift/criteria/prune_spec.h"

namespace shiftrt {

namespace {

constexpr int64_t kNumber = 8;         // bytes of a count
constexpr int64_t kSplitChannels = 3;  // Processes::Split() makes so many

// Messages between all processes go up and down a binary tree, whose root is place 0.
int64_t Children(int64_t place, int64_t size) {
  return (2 * place + 1 < size ? 1 : 0) + (2 * place + 2 < size ? 1 : 0);
}

// `each(place)` of a place and of all below it.
int64_t SumBelow(int64_t place, int64_t size, const std::function<int64_t(int)>& each) {
  if (place >= size) return 0;
  return each(static_cast<int>(place)) + SumBelow(2 * place + 1, size, each) + SumBelow(2 * place + 2, size, each);
}

// The number of items that a process has if `count` are dealt out.
int64_t ItemsOf(const Place& place, int64_t count) { return (count - place.rank + place.size - 1) / place.size; }

int64_t ShareBytes(const Place& place, int64_t count, int64_t each) {
  if (place.size == 1) return 0;
  return GatherBytes(place, [&](int rank) { return ItemsOf({rank, place.size}, count) * each; });
}

// After every round, all processes are asked whether one was interrupted.
int64_t RoundsBytes(const Place& place, int64_t batches) {
  const int64_t rounds = (batches + place.size - 1) / place.size;
  return rounds * GatherBytes(place, [](int) { return int64_t{1}; });
}

}  // namespace

int64_t BroadcastBytes(const Place& place, int from, int64_t payload) {
  return Children((place.rank - from + place.size) % place.size, place.size) * (kNumber + payload);
}

// Each message carries the rank of whom it is and its length.
int64_t GatherBytes(const Place& place, const std::function<int64_t(int)>& payload) {
  if (place.size == 1) return 0;
  const auto framed = [&](int rank) { return static_cast<int64_t>(sizeof(int)) + kNumber + payload(rank); };
  const int64_t up = place.rank == 0 ? 0 : kNumber + SumBelow(place.rank, place.size, framed);
  return up + BroadcastBytes(place, 0, kNumber + SumBelow(0, place.size, framed));
}

int64_t CollectBytes(const Place& place, const Collection& collection) {
  if (place.size == 1) return 0;
  const auto& [batches, sites, hidden, weighted, channel] = collection;
  const auto count = static_cast<int64_t>(batches.size());
  int64_t bytes = RoundsBytes(place, count);
  for (int64_t i = 0; i < sites; ++i) {
    const auto owner = static_cast<int>((1 + channel + i) % place.size);
    bytes += BroadcastBytes(place, owner, SumsMessageBytes(hidden, hidden));
    if (owner == place.rank) continue;
    for (int64_t batch = place.rank; batch < count; batch += place.size)
      bytes += RowsMessageBytes(batches[batch].tokens, hidden, hidden, weighted);
  }
  return bytes;
}

int64_t InfluenceBytes(const Place& place, const std::vector<BatchShape>& batches, int64_t layers) {
  const auto count = static_cast<int64_t>(batches.size());
  int64_t bytes = RoundsBytes(place, count);
  const auto window = static_cast<int64_t>(sizeof(Unit)) + 4 * kNumber;  // which, and how many products and offsets
  for (int64_t first = 0; first < count; first += place.size) {
    bytes += GatherBytes(place, [&](int rank) {
      if (first + rank >= count) return kNumber;
      const BatchShape& batch = batches[first + rank];
      return kNumber + layers * (window + static_cast<int64_t>(sizeof(RowProducts)) * batch.tokens +
                                 kNumber * (batch.sequences + 1));
    });
  }
  return bytes;
}

int64_t ShareAdaptersBytes(const Place& place, int64_t sites, int64_t hidden, int64_t rank) {
  const int64_t numbers = hidden * (1 + (rank == 0 ? hidden : 2 * rank));
  const int64_t report = 11 * kNumber + static_cast<int64_t>(sizeof(Site)) + 8 * hidden;  // with all singular values
  return ShareBytes(place, sites, 8 * kNumber + 4 * numbers) + ShareBytes(place, sites, report);
}

int64_t ShareLossesBytes(const Place& place, int64_t batches) { return ShareBytes(place, batches, 8); }

int64_t MainJobBytes(const Place& place, const MainJob& job, const JobOutline& outline) {
  const ModelConfig& config = job.weights->config;
  const auto batches = [&](const Sequences& text) {
    std::vector<BatchShape> shapes;
    for (int64_t left = text.count; left > 0; left -= outline.calibration.samples_per_batch) {
      const int64_t sequences = std::min(left, outline.calibration.samples_per_batch);
      shapes.push_back({sequences * text.length, sequences});
    }
    return shapes;
  };
  int64_t bytes = 0;
  if (outline.selects)
    bytes += InfluenceBytes(place, batches(outline.fit), UnitsOf(job.recipe.prune.unit, config.layers));
  if (outline.collected > 0 && !outline.loads) {
    const bool weighted = !job.recipe.weighting.uniform();
    int64_t channel = kSplitChannels;
    // One pass per site in turn, or one pass for all.
    const int64_t passes = outline.in_sequence() ? outline.collected : 1, sites = outline.collected / passes;
    for (int64_t pass = 0; pass < passes; ++pass)
      for (const Sequences* text : {&outline.fit, &outline.heldout}) {
        bytes += CollectBytes(place, {batches(*text), sites, config.hidden, weighted, channel});
        channel += sites;
      }
  }
  const int64_t turns = outline.in_sequence() ? outline.sites : 1, fitted = turns > 0 ? outline.sites / turns : 0;
  if (CorrectionOf(job.recipe).has_rank())
    bytes += turns * ShareAdaptersBytes(place, fitted, config.hidden, outline.rank);
  return bytes + job.variants * ShareLossesBytes(place, outline.window_batches());
}

}  // namespace shiftrt
