// UTF-8, and the printable alphabet byte-level BPE vocabularies write their bytes in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shiftrt {

struct Utf8Span {
  size_t length;  // of the character, or of the longest prefix of one where it breaks off
  bool valid;
};

// What stands at the front of a text that is not empty.
Utf8Span FirstCharacter(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Every broken-off character becomes one U+FFFD: the substitution of maximal subparts that Unicode recommends.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Code point of a valid character.
char32_t CodePoint(std::string_view character);

bool IsWhiteSpace(char32_t c);  // the Unicode property White_Space

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

// The byte-level alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards.
std::string BytesToAlphabet(std::string_view bytes);
// Back to bytes; false, with `bytes` untouched, if a character is not of the alphabet.
bool AppendAlphabetBytes(std::string_view piece, std::string& bytes);

// "<0x0A>" is byte 10; -1 for anything else.
int ParseBytePiece(std::string_view piece);
std::string BytePiece(uint8_t byte);

}  // namespace shiftrt
