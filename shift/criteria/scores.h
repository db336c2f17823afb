// The criteria of this directory; criteria.cc holds the table.
#pragma once

#include <vector>

#include "shift/criteria.h"

namespace shiftrt {

std::vector<double> BlockInfluenceScores(const CriterionInput& input, Progress& progress);
std::vector<double> ReverseScores(const CriterionInput& input, Progress& progress);
std::vector<double> ReverseKeepLastScores(const CriterionInput& input, Progress& progress);
std::vector<double> RandomScores(const CriterionInput& input, Progress& progress);
std::vector<double> MagnitudeL1Scores(const CriterionInput& input, Progress& progress);
std::vector<double> MagnitudeL2Scores(const CriterionInput& input, Progress& progress);

}  // namespace shiftrt
