// SPDX-License-Identifier: Apache-2.0
// Reads Parquet files, the form in which the Hugging Face hub has data sets (source: apache/parquet-format).
//
// Supported are what pyarrow and `datasets` write by default, and more: data pages of both versions; the encodings
// PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY and RLE; the codecs UNCOMPRESSED, SNAPPY, GZIP and ZSTD; booleans, integers,
// floating-point numbers and texts, optional or not, in lists and structs of any nesting up to 8 levels. Dates and
// times are read as the integers that are stored. Everything else (DELTA encodings, decimals, maps, bytes that are not
// text, encryption) is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

class ParquetFile {
 public:
  // The limit of the memory for one row group, decompressed and as values. It protects against files that decompress
  // without end.
  static constexpr uint64_t kMaxRowGroupBytes = uint64_t{1} << 31;
  // The limit for all row groups that are read, as a multiple of that for one.
  static constexpr uint64_t kMaxRowGroups = 4;

  // `bytes` is the whole file and must outlive this. Errors call it `name`. Throws Error for what is damaged or not
  // supported.
  ParquetFile(std::string_view bytes, const std::string& name, uint64_t limit = kMaxRowGroupBytes);
  ~ParquetFile();

  int64_t rows() const;
  int64_t row_groups() const;
  const std::vector<std::string>& columns() const;  // at the top level

  // The rows of one row group as JSON objects: those of `columns` that the file has, or all columns if none are named.
  // Throws Error naming file, row group and column.
  std::vector<nlohmann::json> ReadRowGroup(int64_t group, const std::vector<std::string>& columns = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// True if a file of this name is Parquet: it ends in ".parquet".
bool IsParquet(const std::filesystem::path& file);

}  // namespace shiftrt
