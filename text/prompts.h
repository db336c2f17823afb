// SPDX-License-Identifier: Apache-2.0
// Prompts that models reply to.
#pragma once

#include <string>
#include <vector>

namespace shiftrt {

// The prompts of a file: the lines of a text file, or the documents of another; of a row with a question and its
// answer, such as one of Alpaca, what asks for the answer, in a chat without the template of the row. `name` is looked
// up as texts are (ResolveText). Throws Error for a file without prompts.
std::vector<std::string> ReadPrompts(const std::string& name, bool chat);

}  // namespace shiftrt
