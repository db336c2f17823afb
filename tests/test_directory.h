// SPDX-License-Identifier: Apache-2.0
// Where the tests' own files are.
#pragma once

#include <filesystem>

namespace shiftrt {

// The directory tests/ of the source tree.
std::filesystem::path TestDirectory();

}  // namespace shiftrt
