// SPDX-License-Identifier: Apache-2.0
// JSON from untrusted files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shiftrt {

// Parses `text`; errors call the file `name`. Throws Error for invalid JSON or UTF-8, for a duplicate key in one
// object (the parser would silently keep the last one), and for nesting beyond 16 levels (traversing the value takes
// one stack frame per level).
// Time and memory are linear in the bytes of the text.
nlohmann::json ParseJson(std::string_view text, const std::string& name);

/// Parses a row of data. Python's json module writes NaN, Infinity and -Infinity for numbers that JSON does not have;
/// each of them is read as null here, so that such a number in a column that nobody reads is no error.
/// \param text The row.
/// \param name The row in messages, such as its file and line.
/// \return The row.
/// \throws Error as ParseJson does.
nlohmann::json ParseJsonOfRows(std::string_view text, const std::string& name);

// The same as ParseJson with the keys of each object in their order, for objects of at most 4096 keys.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, const std::string& name);

// `value` as an integer. Throws Error for anything else and beyond 64 bits; for a real number beyond them, the
// library's own conversion has no defined result.
int64_t Integer(const nlohmann::json& value);

// `value` in a message: its JSON, prepared by Printable().
std::string Shown(const nlohmann::json& value);
// The message of an exception of nlohmann's library, without the name of its type.
std::string JsonReason(const nlohmann::json::exception& error);

}  // namespace shiftrt
