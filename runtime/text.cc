// SPDX-License-Identifier: Apache-2.0
#include "runtime/text.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "runtime/files.h"

namespace shiftrt {

namespace {

using Chunk = std::array<char, 1 << 16>;

void AppendWithin(uint64_t limit, const Chunk& chunk, size_t size, std::string& text, const std::string& name) {
  Check(text.size() + size <= limit, "{}: more than {} bytes once decompressed", name, limit);
  text.append(chunk.data(), size);
}

// Decompresses all members of a gzip file (RFC 1952 allows several in sequence).
std::string Gunzip(const std::string& bytes, uint64_t limit, const std::string& name) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  z_stream stream = {};
  Check(inflateInit2(&stream, kGzipOnly) == Z_OK, "{}: zlib cannot start", name);
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> guard(&stream, &inflateEnd);
  Chunk chunk;
  std::string text;
  size_t fed = 0;
  for (int status = Z_OK; status != Z_STREAM_END || fed < bytes.size() || stream.avail_in > 0;) {
    CheckInterrupted();
    if (stream.avail_in == 0) {  // avail_in is 32 bits wide
      const size_t size = std::min(bytes.size() - fed, size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + fed));
      stream.avail_in = static_cast<uInt>(size);
      fed += size;
    }
    if (status == Z_STREAM_END) inflateReset(&stream);
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = chunk.size();
    status = inflate(&stream, Z_NO_FLUSH);
    Check(status != Z_BUF_ERROR, "{}: the gzip data is truncated", name);
    Check(status == Z_OK || status == Z_STREAM_END, "{}: damaged gzip data ({})", name,
          stream.msg != nullptr ? stream.msg : zError(status));
    AppendWithin(limit, chunk, chunk.size() - stream.avail_out, text, name);
  }
  return text;
}

// Decompresses all frames of a Zstandard file.
std::string Unzstd(const std::string& bytes, uint64_t limit, const std::string& name) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  Check(context != nullptr, "{}: zstd cannot start", name);
  Chunk chunk;
  std::string text;
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  for (size_t wanted = 1; wanted != 0 || in.pos < in.size;) {
    CheckInterrupted();
    ZSTD_outBuffer out = {chunk.data(), chunk.size(), 0};
    const size_t before = in.pos;
    wanted = ZSTD_decompressStream(context.get(), &out, &in);
    Check(!ZSTD_isError(wanted), "{}: damaged zstd data ({})", name, ZSTD_getErrorName(wanted));
    AppendWithin(limit, chunk, out.pos, text, name);
    Check(wanted == 0 || out.pos > 0 || in.pos > before, "{}: the zstd data is truncated", name);
  }
  return text;
}

}  // namespace

std::string ReadText(const std::filesystem::path& file, uint64_t limit) {
  const std::string name = file.string();
  std::string bytes = ReadFile(file, limit);
  if (bytes.starts_with("\x1F\x8B")) return Gunzip(bytes, limit, name);
  if (bytes.starts_with("\x28\xB5\x2F\xFD")) return Unzstd(bytes, limit, name);
  return bytes;
}

std::filesystem::path WithoutCompression(const std::filesystem::path& file) {
  const auto extension = file.extension();
  return extension == ".gz" || extension == ".zst" ? std::filesystem::path(file).replace_extension() : file;
}

}  // namespace shiftrt
