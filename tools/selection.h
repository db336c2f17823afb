// How run and inspect show criteria and scores.
#pragma once

#include <cstdint>
#include <string>

#include "shift/criteria/criteria.h"

namespace shiftrt {

// A line a criterion, for --help.
std::string CriteriaHelp();
// The score of that layer, or of the consecutive layers that begin there; "" where there is none.
std::string ScoreText(const Selection& selection, int64_t layer);

}  // namespace shiftrt
