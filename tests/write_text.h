// A file of given bytes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace shiftrt {

// A fresh file each time: one that is mapped stays as it was, and a file system may flush to disk what is written over.
inline void WriteText(const std::filesystem::path& file, std::string_view text) {
  std::filesystem::remove(file);
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace shiftrt
