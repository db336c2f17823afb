// SPDX-License-Identifier: Apache-2.0
// What a fit found, as tables and as JSON.
#pragma once

#include "shift/pipeline.h"

namespace shiftrt {

// The condition number of the system that was solved, as a table shows it.
std::string Condition(const SiteReport& fit);
// The recipes that were tried, a row each under a row of headings, and which of them was chosen.
std::vector<std::vector<std::string>> TrialsTable(const ShiftResult& result);

// Prints the selected layers, the fits, and the trials and decisions on the way, for a model of `layers` layers.
void PrintShift(const ShiftResult& result, int64_t layers);

}  // namespace shiftrt
