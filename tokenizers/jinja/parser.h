// SPDX-License-Identifier: Apache-2.0
// The grammar of Jinja 3.1 (jinja2/parser.py), as far as chat templates use it.
#pragma once

#include "tokenizers/jinja/syntax.h"

namespace shiftrt::jinja {

// Throws Error with the place and the name of what is malformed, unknown or not supported.
Body Parse(const Source& source);

}  // namespace shiftrt::jinja
