// SPDX-License-Identifier: Apache-2.0
// Reads one column of one row group: decompresses and decodes its pages.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/parquet/schema.h"

namespace shiftrt::parquet {

// Counts the memory of row groups, and throws Error past a limit.
class Allowance {
 public:
  explicit Allowance(uint64_t bytes) : left_(bytes) {}
  void Take(uint64_t bytes, const std::string& where);
  uint64_t left() const { return left_; }

 private:
  uint64_t left_;
};

// Entries in their order. An entry has a value if its definition level is the column's highest.
struct Column {
  std::vector<uint8_t> repetition, definition;
  std::vector<nlohmann::json> values;
  size_t entry = 0, value = 0;  // the next ones to take
};

// Decodes the column `leaf`, whose metadata is a ColumnMetaData, from the bytes of the file. Throws Error naming
// `where`.
Column ReadColumn(Bytes file, const SchemaNode& leaf, const Thrift& metadata, Allowance& allowance,
                  const std::string& where);

}  // namespace shiftrt::parquet
