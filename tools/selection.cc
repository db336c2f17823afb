// SPDX-License-Identifier: Apache-2.0
#include "tools/selection.h"

#include <fmt/format.h>

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

std::string ScoreText(const Selection& selection, int64_t layer) {
  const bool scored = layer < static_cast<int64_t>(selection.scores.size()) && std::isfinite(selection.scores[layer]);
  return scored ? fmt::format("{:.5g}", selection.scores[layer]) : "";
}

}  // namespace shiftrt
