// SPDX-License-Identifier: Apache-2.0
// How commands show criteria, corrections and scores.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shiftrt/model.h"
#include "shiftrt/recipe.h"

namespace CLI {
class App;
}  // namespace CLI

namespace shiftrt {

// One line per criterion, and one per correction, for --help.
std::string CriteriaHelp();
std::string CorrectionsHelp();
// One line per mixture of quantised types.
std::string MixturesHelp();
// A line per option that does not go with every criterion, correction and other option: for --help, for `inspect
// --options` and for docs/dev/method.md.
std::string OptionsTable();
// --yes, which CheckRemoval heeds.
void AddYes(CLI::App& app, bool& yes);
// Throws UsageError for an amount that the model does not allow; and, without `yes`, for one that would remove more
// than half of the units. A list of layers is taken as it is.
void CheckRemoval(const LanguageModel& model, const PruneSpec& prune, bool yes);
// The score of that unit, or of the consecutive units that begin there; "" where there is none.
std::string ScoreText(const Selection& selection, int64_t unit);
// The units that were scored, which tables have a row each of: blocks, or halves of blocks.
int64_t UnitsOf(const Selection& selection, int64_t layers);
bool Removes(const Selection& selection, const BlockPart& part);
// The layers that both remove; a half counts as half a layer.
double Overlap(const Selection& a, const Selection& b);
// With scores, removed layers and overlaps of each.
nlohmann::json SelectionsJson(const std::vector<Selection>& selections);
// "removed by bi", or "removed, given as a list".
std::string RemovedBy(const Selection& selection);
// "layers" or "half blocks", by what was scored; and how many of these are removed.
const char* UnitsName(const Selection& selection);
int64_t UnitsRemoved(const Selection& selection);

}  // namespace shiftrt
