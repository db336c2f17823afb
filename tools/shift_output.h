// SPDX-License-Identifier: Apache-2.0
// Shows the results of a repair as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shiftrt/provenance.h"

namespace shiftrt {

// The condition number of the system that was solved, as a table shows it.
std::string Condition(const FitReport& fit);
// The recipes that were tried, a row each under a row of headings, and which of them was chosen.
std::vector<std::vector<std::string>> TrialsTable(const RepairReport& report);

// Prints the selected layers, the fits, and the trials and decisions on the way, for a model of `layers` layers.
void PrintRepair(const RepairReport& report, int64_t layers);

// The results of a run as --json writes them: its record without the settings.
nlohmann::json ResultsJson(Provenance made);

}  // namespace shiftrt
