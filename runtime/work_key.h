// SPDX-License-Identifier: Apache-2.0
// The keys by which a command that continues finds what an interrupted one has kept: fits, scores, replies, cells of a
// sweep, states of a training. The tables of settings (runtime/field_rows.h) are added by their rows, so that a new
// setting is a part of every key.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "runtime/field_rows.h"

namespace shiftrt {

// Named values that decide a result. Two keys have the same hash if all names and values are the same, in their order.
class WorkKey {
 public:
  // `what` is kept. It is a part of the key, like the version of the program.
  explicit WorkKey(std::string_view what);

  template <typename Value>
  WorkKey& Add(std::string_view name, const Value& value) {
    return AddWords(name, FieldWords(value));
  }
  // The rows of a table, but for those without part in any result.
  template <typename Row, typename Settings>
  WorkKey& AddRows(std::span<const Row> rows, const Settings& settings) {
    for (const Row& row : rows)
      if (row.decides()) AddWords(row.name, row.words(settings));
    return *this;
  }
  // Path, size and time of the last change of a file. One that is not there has no size.
  WorkKey& AddFile(std::string_view name, const std::filesystem::path& file);

  // 16 hexadecimal digits.
  std::string Hash() const;

 private:
  WorkKey& AddWords(std::string_view name, std::string_view words);

  std::string text_;
};

}  // namespace shiftrt
