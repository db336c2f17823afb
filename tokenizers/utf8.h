// SPDX-License-Identifier: Apache-2.0
// UTF-8, and the printable alphabet in which byte-level BPE vocabularies write their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/utf8.h"

namespace shiftrt {

// Replaces every incomplete character by one U+FFFD: the substitution of maximal subparts that Unicode recommends.
std::string ReplaceInvalidUtf8(std::string_view bytes);

bool IsWhiteSpace(char32_t c);  // the Unicode property White_Space
// The position at which the trailing white space of `text` begins, and the one at which the leading white space ends.
size_t TrailingSpace(std::string_view text);
size_t LeadingSpace(std::string_view text);

inline size_t MostReplaced(size_t size) { return 4096 + 16 * size; }
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);
// The same for a replacement that a file names, in `text`, which was made of `size` bytes. Throws Error if the result
// has more than MostReplaced(size) bytes: no real tokenizer makes a text so much longer.
std::string ReplaceWithin(size_t size, std::string_view text, std::string_view from, std::string_view to);

// Writes bytes in the byte-level alphabet: printable Latin-1 bytes represent themselves, the others U+0100 onwards.
std::string BytesToAlphabet(std::string_view bytes);
// The inverse. False, with `bytes` unchanged, if a character is not in the alphabet.
bool AppendAlphabetBytes(std::string_view piece, std::string& bytes);

// The byte that a piece such as "<0x0A>" represents (here 10); -1 for any other piece.
int ParseBytePiece(std::string_view piece);
std::string BytePiece(uint8_t byte);

}  // namespace shiftrt
