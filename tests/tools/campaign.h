// SPDX-License-Identifier: Apache-2.0
// How often the tests of a campaign disturb each command. The scripts of the campaigns set SHIFTRT_KILLS.
#pragma once

#include <cstdlib>

namespace shiftrt {

inline int Kills(int in_the_suite) {
  const char* const kills = std::getenv("SHIFTRT_KILLS");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  in_the_suite = 1;  // the program is slow there
#endif
  return kills == nullptr ? in_the_suite : std::atoi(kills);
}

}  // namespace shiftrt
