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

// Decompresses all members of a gzip file (RFC 1952 allows several in sequence).
void Gunzip(std::string_view bytes, const std::string& name, const TextSink& sink) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  z_stream stream = {};
  Check(inflateInit2(&stream, kGzipOnly) == Z_OK, "{}: zlib cannot start", name);
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> guard(&stream, &inflateEnd);
  Chunk chunk;
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
    if (!sink({chunk.data(), chunk.size() - stream.avail_out})) return;
  }
}

// Decompresses all frames of a Zstandard file.
void Unzstd(std::string_view bytes, const std::string& name, const TextSink& sink) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  Check(context != nullptr, "{}: zstd cannot start", name);
  Chunk chunk;
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  for (size_t wanted = 1; wanted != 0 || in.pos < in.size;) {
    CheckInterrupted();
    ZSTD_outBuffer out = {chunk.data(), chunk.size(), 0};
    const size_t before = in.pos;
    wanted = ZSTD_decompressStream(context.get(), &out, &in);
    Check(!ZSTD_isError(wanted), "{}: damaged zstd data ({})", name, ZSTD_getErrorName(wanted));
    if (!sink({chunk.data(), out.pos})) return;
    Check(wanted == 0 || out.pos > 0 || in.pos > before, "{}: the zstd data is truncated", name);
  }
}

constexpr std::string_view kGzipMagic = "\x1F\x8B", kZstdMagic = "\x28\xB5\x2F\xFD";

}  // namespace

bool IsCompressed(std::string_view bytes) { return bytes.starts_with(kGzipMagic) || bytes.starts_with(kZstdMagic); }

void Decompress(std::string_view bytes, const std::string& name, const TextSink& sink) {
  if (bytes.starts_with(kGzipMagic))
    Gunzip(bytes, name, sink);
  else
    Unzstd(bytes, name, sink);
}

std::string ReadText(const std::filesystem::path& file, uint64_t limit) {
  const std::string name = file.string();
  const MappedFile mapped = MappedFile::OfText(file);
  const std::string_view bytes(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  Check(bytes.size() <= limit, "{}: has {} bytes, at most {} are allowed for this kind of file", name, bytes.size(),
        limit);
  if (!IsCompressed(bytes)) return std::string(bytes);
  std::string text;
  Decompress(bytes, name, [&](std::string_view piece) {
    Check(text.size() + piece.size() <= limit, "{}: more than {} bytes once decompressed", name, limit);
    text += piece;
    return true;
  });
  return text;
}

std::filesystem::path WithoutCompression(const std::filesystem::path& file) {
  const auto extension = file.extension();
  return extension == ".gz" || extension == ".zst" ? std::filesystem::path(file).replace_extension() : file;
}

}  // namespace shiftrt
