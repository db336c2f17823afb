// SPDX-License-Identifier: Apache-2.0
// The keys of a config.json that nothing here reads, because they change no result of a model.
#pragma once

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/families.h"

namespace shiftrt {

// The keys with a value that `config` was not asked for, without those that are known to change nothing.
std::vector<std::string> UnknownKeys(const ConfigReader& config, const Family& family);
// Throws Error if there is one.
void RefuseUnknownKeys(const ConfigReader& config, const Family& family);

}  // namespace shiftrt
