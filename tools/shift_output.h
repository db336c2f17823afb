// SPDX-License-Identifier: Apache-2.0
// Shows the results of a repair as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shiftrt/provenance.h"
#include "shiftrt/recipe.h"
#include "tools/report/page.h"

namespace shiftrt {

// Rows of tables, one per fit: the name of the layers with their mean scale; the name, lambda, condition, rank,
// effective rank and R2 of both texts; and the name, projection, lambda, condition and R2 of both texts.
std::vector<std::vector<std::string>> ScaleRows(const std::vector<FitReport>& sites);
std::vector<std::vector<std::string>> SiteTableRows(const std::vector<FitReport>& sites);
std::vector<std::vector<std::string>> HealedRows(const std::vector<FitReport>& healed);
// The recipes that were tried, and which of them was chosen.
PageTable TrialsTable(const RepairReport& report);

// The cuts that the search for the largest one tried.
PageTable CutsTable(const RepairReport& report);

// Prints the selected layers, the fits, and the trials and decisions on the way, for a model of `layers` layers.
void PrintRepair(const RepairReport& report, int64_t layers);

// Prints what a rounding did: bytes before and after, and the error.
void PrintQuantised(const QuantiseReport& rounded);

// Tells in a sentence of two lines how much the repair gains on held-out calibration text.
std::string GainText(const GainReport& gain);
// Says that another criterion would remove layers that cost less.
std::string OtherChoiceText(const OtherChoice& other, const GainReport& gain, const PruneSpec& prune);
// Prints that where it is clear. Of a repair by `recipe` whose gain does not stand out of its error, also names what
// may help more, and what that costs.
void PrintProposals(const RepairReport& report, const Recipe& recipe);

// The results of a run as --json writes them: its record without the settings.
nlohmann::json ResultsJson(Provenance made);

}  // namespace shiftrt
