// SPDX-License-Identifier: Apache-2.0
// The Python that runs programs of models.
#pragma once

#include <string>
#include <vector>

namespace shiftrt {

struct Python {
  std::string executable;
  // The files and directories that it reads besides those of the system (/usr, /lib): its libraries.
  std::vector<std::string> libraries;
};

// Finds python3 in the directories of PATH, starts it once, and asks it where its libraries are. Throws Error if there
// is none, or if it does not answer.
Python FindPython();

}  // namespace shiftrt
