// SPDX-License-Identifier: Apache-2.0
// Renders a syntax tree.
#pragma once

#include "tokenizers/jinja/syntax.h"

namespace shiftrt::jinja {

// The text of `body` with these variables. Throws Error with the place for what Jinja refuses at this point, for a
// refusal by the template itself (raise_exception), and beyond the limits of `run`.
std::string Render(const Body& body, std::vector<std::pair<std::string, Value>> variables, Run& run);

}  // namespace shiftrt::jinja
