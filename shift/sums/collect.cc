// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/collect.h"

#include <algorithm>
#include <span>

#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "runtime/words.h"
#include "shift/sums/ridge_probe.h"

namespace shiftrt {

namespace {

// One part of the calibration text, fitted or held out: its batches, the sums of their tokens, and how
// many are summed.
struct Part {
  std::vector<Batch> CalibrationSet::*batches;
  RidgeSums SiteSums::*sums;
  int64_t CalibrationSums::*done;
  std::vector<KeptRows> StartStreams::*streams;
  const char* phase;
};
constexpr Part kParts[] = {
    {&CalibrationSet::fit, &SiteSums::fit, &CalibrationSums::fit_batches, &StartStreams::fit, "calibrating"},
    {&CalibrationSet::heldout, &SiteSums::heldout, &CalibrationSums::heldout_batches, &StartStreams::heldout,
     "measuring on held-out text"},
};

}  // namespace

CalibrationSums CalibrationSums::Empty(const std::vector<BlockPart>& parts, int64_t hidden) {
  CalibrationSums sums;
  for (const Site& site : SitesOf(parts)) sums.sites.emplace_back(site, hidden);
  return sums;
}

std::vector<BlockPart> CalibrationSums::Parts() const {
  std::vector<BlockPart> parts;
  for (const SiteSums& site : sites) parts.push_back(site.site.Parts().front());
  return parts;
}

std::vector<const SiteSums*> CalibrationSums::Sites(const std::vector<BlockPart>& parts) const {
  const std::vector<BlockPart> held = Parts();
  std::vector<const SiteSums*> chosen;
  for (const BlockPart& part : parts) {
    const auto found = std::find(held.begin(), held.end(), part);
    Check(found != held.end(), "there are no sums of layer {}; there are of {}", Name(part), Names(held));
    chosen.push_back(&sites[found - held.begin()]);
  }
  return chosen;
}

int64_t SitesInMemory(const Context& context, int64_t hidden) {
  return UsableMemory(context) / SiteSums::Bytes(hidden);
}

void CheckMemory(const Context& context, int64_t sites, int64_t hidden, const char* advice) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const int64_t room = UsableMemory(context), taken = sites * SiteSums::Bytes(hidden);
  Check(taken <= room, "the calibration sums of {} take {:.4g} MiB of memory, and {:.4g} MiB may be used; {}",
        Counted(sites, "site"), mib(taken), mib(room), advice);
}

void Collect(const ShiftJob& job, CalibrationSums& sums, PassCheckpoint* checkpoint, const StartStreams* start) {
  for (const Part& part : kParts) {
    const auto left = std::span(job.calibration.*part.batches).subspan(sums.*part.done);
    if (sums.sites.empty() || left.empty()) continue;
    RidgeProbe probe(&(sums.*part.done));
    probe.NormAs(job.context, job.model.weights);
    for (SiteSums& site : sums.sites) probe.Add(site, site.*part.sums);
    Pass pass(job.context, job.model.weights);
    pass.Add(probe);
    if (start != nullptr && !(start->*part.streams).empty())
      pass.BeginAt(start->layer, std::span(start->*part.streams).subspan(sums.*part.done));
    pass.Run(part.phase, left, job.progress, checkpoint);
  }
}

}  // namespace shiftrt
