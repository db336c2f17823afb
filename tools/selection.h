// SPDX-License-Identifier: Apache-2.0
// How commands show criteria, corrections and scores.
#pragma once

#include <cstdint>
#include <string>

#include "shift/corrections/corrections.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

// One line per criterion, and one per correction, for --help.
std::string CriteriaHelp();
std::string CorrectionsHelp();
// The score of that layer, or of the consecutive layers that begin there; "" where there is none.
std::string ScoreText(const Selection& selection, int64_t layer);

}  // namespace shiftrt
