// SPDX-License-Identifier: Apache-2.0
// Completion in shells. The scripts of `shiftrt completion SHELL` ask the program for what the last word of a command
// line may become, which it finds in the parser's own commands and options.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace shiftrt {

struct Candidate {
  std::string word, group, summary;  // for an option its group in --help-all and its description
};

// Returns the words that the last of `words` may become. The first word is the program, and `app` is its parser. There
// are none where a file, a number or any text is expected.
std::vector<Candidate> Complete(const CLI::App& app, std::vector<std::string> words);

}  // namespace shiftrt
