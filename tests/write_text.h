// SPDX-License-Identifier: Apache-2.0
// Writes a file with the given bytes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace shiftrt {

// Creates a new file each time: a mapped old file stays unchanged, and some file systems flush an overwritten one to
// disk.
inline void WriteText(const std::filesystem::path& file, std::string_view text) {
  std::filesystem::remove(file);
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace shiftrt
