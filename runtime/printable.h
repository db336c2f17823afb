// SPDX-License-Identifier: Apache-2.0
// Text from files and servers, prepared for messages and terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shiftrt {

inline constexpr size_t kMaxPrintable = 200;

// `text` on one line of a message: control characters and characters that change the direction of what follows them are
// escaped as \x1b or \u202e, bytes that are not UTF-8 as \xff. A text of more than `limit` bytes is cut at a character,
// and the number of its bytes is given. The result is valid UTF-8 of a bounded size, so that a file cannot move the
// cursor of a terminal, hide the rest of a message, or fill the screen. A name that is longer than that is not a name
// that a person reads.
std::string Printable(std::string_view text, size_t limit = kMaxPrintable);

// A whole message, in which line ends stay as they are.
std::string PrintableLines(std::string_view text, size_t limit);

}  // namespace shiftrt
