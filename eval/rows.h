// SPDX-License-Identifier: Apache-2.0
// Rows of data sets as people have them on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

// Named values of one row. Every accessor throws Error naming file, line and column when the value is not there or is
// of another kind.
class Row {
 public:
  Row(nlohmann::json values, std::string where) : values_(std::move(values)), where_(std::move(where)) {}

  const std::string& where() const { return where_; }  // "file:line"
  const nlohmann::json& values() const { return values_; }
  bool Has(const char* column) const { return values_.contains(column); }
  void Set(const char* column, std::string text) { values_[column] = std::move(text); }

  const std::string& Text(const char* column) const;
  std::vector<std::string> Texts(const char* column) const;  // a list of at least two
  const nlohmann::json& Object(const char* column) const;
  bool Flag(const char* column) const;
  // A whole number from `first` to `first` + count - 1, or a text that spells one; returned counted from 0.
  int64_t Index(const char* column, int64_t count, int64_t first = 0) const;

  template <typename... Args>
  void Require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) shiftrt::Fail("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const nlohmann::json& Value(const char* column) const;

  nlohmann::json values_;
  std::string where_;
};

// The rows of a file, identified by its extension: .jsonl and .json (one object per line), .parquet, .csv (RFC 4180;
// the names of the columns in the first line or, where `columns` are given and the first line is not a header, those),
// .raw, .tokens and .txt (WikiText: a row {"page"} for each article). `text` is the file's, `name` stands for it in
// errors. Throws Error naming file and line for anything malformed.
std::vector<Row> ParseRows(std::string_view text, const std::filesystem::path& name,
                           const std::vector<std::string>& columns);

}  // namespace shiftrt
