// SPDX-License-Identifier: Apache-2.0
// `run --report DIR`: what a run found, as a page to look at.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shift/measure/drift.h"
#include "shift/pipeline.h"
#include "tools/report/page.h"

namespace shiftrt {

struct RunReport {
  std::string title, summary;
  std::vector<Selection> scores;  // by several criteria; those of the run itself first
  std::vector<SiteReport> sites, healed;
  std::vector<std::vector<std::string>> trials;  // TrialsTable(), if the correction chose its recipe
  std::vector<std::string> untried;
  PageTable comparison;
  StreamDrift drift;  // of the original, the pruned and the corrected model
  std::string prompt;
  std::vector<std::pair<std::string, std::string>> continuations;  // by the name of the variant
  std::vector<Section> more;                                       // sections that follow
};

Page RunPage(const RunReport& report);

// The beginning of a held-out text as batches to follow the stream through: at most `limit` tokens, in sequences of at
// most 512.
std::vector<Batch> DriftBatches(std::span<const int32_t> tokens, int64_t context_length, int64_t limit = 4096);

}  // namespace shiftrt
