// SPDX-License-Identifier: Apache-2.0
// Codecs and encodings of Parquet pages (parquet-format: Compression.md, Encodings.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/parquet/thrift.h"

namespace shiftrt::parquet {

// Decompresses `bytes`, which must give `size` bytes. Throws Error for damaged data, another size, or a codec other
// than UNCOMPRESSED, SNAPPY, GZIP and ZSTD, by its name.
std::vector<std::byte> Decompress(int64_t codec, Bytes bytes, uint64_t size, const std::string& where);

// The first `count` integers of the hybrid of run lengths and bit packing, of `width` bits (0 to 32) each.
std::vector<uint32_t> DecodeHybrid(ByteReader& in, int width, uint64_t count);

// The name of an encoding, for messages.
std::string EncodingName(int64_t encoding);

}  // namespace shiftrt::parquet
