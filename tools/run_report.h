// SPDX-License-Identifier: Apache-2.0
// `run --report DIR`: what a run found, as a page to look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiftrt/repair.h"
#include "tools/fidelity_output.h"
#include "tools/report/page.h"

namespace shiftrt {

// The contents of the page. It holds references; its maker keeps the objects alive.
struct RunReport {
  const RepairJob& job;
  const RepairResult& repair;
  const HeldOutText& heldout;
  const ComparisonSettings& comparison;
  const std::vector<MeasuredVariant>& measured;
  const FidelityTable& fidelity;
  uint64_t seed;
  const Resources& resources;
  Progress& progress;
};

// Measures what the page shows besides: scores of the layers by other criteria, and the drift of the stream on the
// held-out text. `more`: sections that follow.
Page RunPage(const RunReport& report, std::vector<Section> more);

}  // namespace shiftrt
