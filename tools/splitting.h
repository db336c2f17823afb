// SPDX-License-Identifier: Apache-2.0
// --split: one model over several processes.
#pragma once

#include "tools/options.h"

namespace shiftrt {

struct Weights;

// Divides the processes into groups as options.split says. With auto the model is looked at, but not loaded; it must be
// there. Throws UsageError for numbers of processes that are no multiple, and where memory has no room for the model.
void SplitModel(const CommonOptions& options, Processes& processes);

// Says which process holds which blocks, unless `quiet`, and notes what this one holds. Nothing for a whole model.
void ReportShares(const Weights& weights, Processes& processes, bool quiet);

}  // namespace shiftrt
