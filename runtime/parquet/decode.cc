// SPDX-License-Identifier: Apache-2.0
#include "runtime/parquet/decode.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "runtime/check.h"

namespace shiftrt::parquet {

namespace {

enum Codec { kUncompressed, kSnappy, kGzip, kZstd = 6 };

template <size_t count>
std::string NameOf(const std::array<const char*, count>& names, int64_t index) {
  return index >= 0 && index < static_cast<int64_t>(count) ? names[index] : std::to_string(index);
}

// One raw block of Snappy (google/snappy, format_description.txt): its length, then literals and copies.
void DecompressSnappy(ByteReader in, std::vector<std::byte>& out) {
  const uint64_t size = in.Varint();
  Check(size == out.size(), "{}: damaged: a block of {} bytes, expected {}", in.where(), size, out.size());
  size_t at = 0;
  while (in.left() > 0) {
    const uint8_t tag = in.Byte();
    uint64_t length = (tag >> 2) + 1, offset = 0;
    const auto little_endian = [&](uint64_t bytes) {
      uint64_t value = 0;
      for (uint64_t i = 0; i < bytes; ++i) value |= uint64_t{in.Byte()} << (8 * i);
      return value;
    };
    switch (tag & 3) {
      case 0:
        if (length > 60) length = little_endian(length - 60) + 1;
        break;
      case 1:
        length = (tag >> 2 & 7) + 4;
        offset = (uint64_t{tag} >> 5) << 8 | in.Byte();
        break;
      case 2: offset = little_endian(2); break;
      default: offset = little_endian(4);
    }
    const bool literal = (tag & 3) == 0;
    Check(length <= out.size() - at && (literal || (offset > 0 && offset <= at)), "{}: damaged Snappy data",
          in.where());
    if (literal) {
      const Bytes bytes = in.Take(length);
      std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<ptrdiff_t>(at));
    } else {
      for (size_t i = 0; i < length; ++i) out[at + i] = out[at + i - offset];  // may repeat what it just wrote
    }
    at += length;
  }
  Check(at == out.size(), "{}: damaged Snappy data: {} bytes, expected {}", in.where(), at, out.size());
}

void DecompressGzip(Bytes bytes, std::vector<std::byte>& out, const std::string& where) {
  Check(bytes.size() <= UINT32_MAX && out.size() <= UINT32_MAX, "{}: a page beyond 4 GiB", where);
  z_stream stream = {};
  Check(inflateInit2(&stream, 32 + MAX_WBITS) == Z_OK, "{}: zlib cannot start", where);
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> guard(&stream, &inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&stream, Z_FINISH);
  Check(status == Z_STREAM_END && stream.avail_out == 0, "{}: damaged gzip data, or not of {} bytes", where,
        out.size());
}

}  // namespace

std::vector<std::byte> Decompress(int64_t codec, Bytes bytes, uint64_t size, const std::string& where) {
  std::vector<std::byte> out(size);
  if (size == 0) return out;  // some writers compress nothing to a few bytes
  switch (codec) {
    case kUncompressed:
      Check(bytes.size() == size, "{}: damaged: {} bytes, expected {}", where, bytes.size(), size);
      std::copy(bytes.begin(), bytes.end(), out.begin());
      return out;
    case kSnappy: DecompressSnappy(ByteReader(bytes, where), out); return out;
    case kGzip: DecompressGzip(bytes, out, where); return out;
    case kZstd: {
      const size_t found = ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size());
      Check(!ZSTD_isError(found), "{}: damaged zstd data ({})", where, ZSTD_getErrorName(found));
      Check(found == size, "{}: damaged zstd data: {} bytes, expected {}", where, found, size);
      return out;
    }
    default: {
      constexpr std::array kNames = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};
      Fail("{}: the codec {} is not supported (UNCOMPRESSED, SNAPPY, GZIP, ZSTD)", where, NameOf(kNames, codec));
    }
  }
}

std::vector<uint32_t> DecodeHybrid(ByteReader& in, int width, uint64_t count) {
  Check(width >= 0 && width <= 32, "{}: damaged: integers of {} bits", in.where(), width);
  std::vector<uint32_t> values;
  values.reserve(count);
  if (width == 0) return values.assign(count, 0), values;
  while (values.size() < count) {
    const uint64_t header = in.Varint(), left = count - values.size();
    if ((header & 1) == 0) {
      uint32_t value = 0;
      for (int i = 0; i < (width + 7) / 8; ++i) value |= uint32_t{in.Byte()} << (8 * i);
      Check(width == 32 || value >> width == 0, "{}: damaged: {} does not fit {} bits", in.where(), value, width);
      Check(header >> 1 > 0, "{}: damaged: a run of no values", in.where());
      values.insert(values.end(), std::min(header >> 1, left), value);
      continue;
    }
    // Groups of 8 values in `width` bytes, the lowest bits first. The last group may stand for fewer values.
    Check(header >> 1 > 0, "{}: damaged: no groups", in.where());
    const uint64_t groups = std::min(header >> 1, (left + 7) / 8);
    const Bytes packed = in.Take(groups * static_cast<uint64_t>(width));
    if (header >> 1 > groups)
      in.Take(std::min<uint64_t>(in.left(), ((header >> 1) - groups) * static_cast<uint64_t>(width)));
    uint64_t bits = 0;
    int held = 0;
    size_t at = 0;
    for (uint64_t i = 0; i < std::min(groups * 8, left); ++i) {
      for (; held < width; held += 8) bits |= std::to_integer<uint64_t>(packed[at++]) << held;
      values.push_back(static_cast<uint32_t>(bits & ((uint64_t{1} << width) - 1)));
      bits >>= width;
      held -= width;
    }
  }
  return values;
}

std::string EncodingName(int64_t encoding) {
  constexpr std::array kNames = {"PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
                                 "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
                                 "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  return NameOf(kNames, encoding);
}

}  // namespace shiftrt::parquet
