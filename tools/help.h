// SPDX-License-Identifier: Apache-2.0
// The help of the commands: the options that people use first under --help, and all options in groups under
// --help-all.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace shiftrt {

// The words with commas between them, in lines of a description.
std::string InLines(const std::vector<std::string>& words);
// Gives `app` and the commands that are added to it later --help-all, and their help its form.
void ShapeHelp(CLI::App& app);
// Puts the options of a command that has a short help in groups. Its options have all been added.
void GroupOptions(CLI::App& command);

}  // namespace shiftrt
