// Text files people give, compressed or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace shiftrt {

inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 32;

// The text of a file; gzip and Zstandard files, known by their first bytes, are decompressed. Throws Error naming the
// file: unreadable, compressed data that is damaged or breaks off, more than `limit` bytes before or after.
std::string ReadText(const std::filesystem::path& file, uint64_t limit = kMaxTextBytes);

// `file` without a final .gz or .zst, so that its extension says what the text is.
std::filesystem::path WithoutCompression(const std::filesystem::path& file);

}  // namespace shiftrt
