// SPDX-License-Identifier: Apache-2.0
// The words of an enumeration: what options, files and messages call its values.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

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

}  // namespace shiftrt
