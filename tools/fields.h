// SPDX-License-Identifier: Apache-2.0
// What the command line calls the library's fields.
#pragma once

#include <string>

#include "runtime/check.h"

namespace CLI {
class App;
}

namespace shiftrt {

// The error for whoever typed `command`'s options: its field under the name of the option that sets it.
std::string Message(const UsageError& error, const CLI::App& command);

}  // namespace shiftrt
