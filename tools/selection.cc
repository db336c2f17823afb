// SPDX-License-Identifier: Apache-2.0
#include "tools/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shiftrt {

std::string CriteriaHelp() {
  std::string text;
  for (const Criterion& criterion : Criteria()) text += fmt::format("\n  {:<20}{}", criterion.name, criterion.summary);
  return text;
}

std::string CorrectionsHelp() {
  std::string text;
  for (const Correction& correction : Corrections())
    text += fmt::format("\n{:<18}{}", correction.name, correction.summary);
  return text;
}

std::string ScoreText(const Selection& selection, int64_t unit) {
  const bool scored = unit < static_cast<int64_t>(selection.scores.size()) && std::isfinite(selection.scores[unit]);
  return scored ? fmt::format("{:.5g}", selection.scores[unit]) : "";
}

int64_t UnitsOf(const Selection& selection, int64_t layers) { return UnitsOf(selection.unit, layers); }

bool Removes(const Selection& selection, const BlockPart& part) {
  return std::any_of(selection.removed.begin(), selection.removed.end(), [&](const BlockPart& removed) {
    return removed.begin() <= part.begin() && part.end() <= removed.end();
  });
}

const char* UnitsName(const Selection& selection) { return selection.unit == Unit::kHalf ? "half blocks" : "layers"; }

int64_t UnitsRemoved(const Selection& selection) {
  int64_t halves = 0;
  for (const BlockPart& part : selection.removed) halves += part.end() - part.begin();
  return selection.unit == Unit::kHalf ? halves : halves / 2;
}

}  // namespace shiftrt
