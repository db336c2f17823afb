// SPDX-License-Identifier: Apache-2.0
// Text files given by the user, compressed or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace shiftrt {

inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 32;

// The text of a file or a pipe; gzip and Zstandard files, recognised by their first bytes, are decompressed. Throws
// Error naming the file if it is unreadable, damaged, truncated, or larger than `limit` bytes before or after
// decompression.
std::string ReadText(const std::filesystem::path& file, uint64_t limit = kMaxTextBytes);

// True if the bytes begin as those of a gzip or Zstandard file do.
bool IsCompressed(std::string_view bytes);
// Passes the text of a compressed file on in pieces until the sink returns false. Throws Error naming the file `name`
// for data that are damaged or truncated.
using TextSink = std::function<bool(std::string_view piece)>;
void Decompress(std::string_view bytes, const std::string& name, const TextSink& sink);

// `file` without a final .gz or .zst; the remaining extension gives the format of the text.
std::filesystem::path WithoutCompression(const std::filesystem::path& file);

}  // namespace shiftrt
