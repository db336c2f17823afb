// SPDX-License-Identifier: Apache-2.0
// The names that options, files and messages use: those of an enumeration's values, and those of a table's rows.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

// One word per value, in the order of the values, which count from 0.
template <typename Enum, size_t kCount>
struct Words {
  std::array<const char*, kCount> words;

  constexpr const char* Of(Enum value) const { return words[static_cast<size_t>(value)]; }
  std::optional<Enum> Find(std::string_view word) const {
    const auto found = std::find(words.begin(), words.end(), word);
    if (found == words.end()) return std::nullopt;
    return static_cast<Enum>(found - words.begin());
  }
  // Throws UsageError with that field for another word. `wrong` says what it is not; the words that are known follow.
  Enum Parse(std::string_view word, const char* field, fmt::format_string<std::string_view&> wrong) const {
    if (const std::optional<Enum> found = Find(word)) return *found;
    FailUsage(Field(field), "{}; known: {}", fmt::format(wrong, word), fmt::join(words, ", "));
  }
};

// Returns the row of that name. Throws UsageError with that field for another name: `wrong` says what it is not, and
// the names that are known follow.
template <typename Row>
const Row& RowNamed(const std::vector<Row>& rows, std::string_view name, const char* field,
                    fmt::format_string<std::string_view&> wrong) {
  std::string known;
  for (const Row& row : rows) {
    if (name == row.name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  FailUsage(Field(field), "{}; known: {}", fmt::format(wrong, name), known);
}

// "1 block", "2 blocks".
inline std::string Counted(int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace shiftrt
