// SPDX-License-Identifier: Apache-2.0
// The option --report of the commands, and the page that it asks for.
#pragma once

#include <string>

#include "tools/report/page.h"

namespace CLI {
class App;
}

namespace shiftrt {

// Adds --report DIR. A directory whose index.html is no report of shiftrt is refused.
void AddReport(CLI::App& app, std::string& directory, const std::string& help);
// Writes the page to the directory, with version and command at its top, and prints where it is.
void WriteReport(Page page, const std::string& directory);

}  // namespace shiftrt
