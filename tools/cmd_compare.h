// SPDX-License-Identifier: Apache-2.0
// `shiftrt compare`.
#pragma once

#include "tools/options.h"

namespace shiftrt {

Command AddCompare(CLI::App& app);

}  // namespace shiftrt
