// SPDX-License-Identifier: Apache-2.0
// Operations of Python's str on valid UTF-8. Lengths and positions are in characters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt::jinja {

// str.isspace of one character.
bool IsSpace(char32_t c);

// The characters of a text, as views into it: 16 bytes for each.
std::vector<std::string_view> Characters(std::string_view text);
int64_t Length(std::string_view text);
// The character at a place below the length.
std::string_view CharacterAt(std::string_view text, int64_t place);

// Finds a part in texts in time linear in their bytes, whatever they hold (Knuth, Morris and Pratt). The part is not
// copied.
class Finder {
 public:
  explicit Finder(std::string_view part);
  // The byte at which the first occurrence at or after `from` begins; npos if there is none.
  size_t First(std::string_view text, size_t from = 0) const;
  size_t Last(std::string_view text) const;

 private:
  // How many bytes of the part match after one more byte, when `matched` did before it.
  size_t Extend(size_t matched, char byte) const;

  std::string_view part_;
  std::vector<uint32_t> border_;  // for each prefix the length of its longest proper prefix that also ends it
};

enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip: of white space, or of any of the characters `of`.
std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> of = {});

// Is given the parts of a text one after the other, and may throw to end the work.
using PartSink = std::function<void(std::string_view part)>;
// str.split: by white space where there is no separator; at most `most` splits, all where it is negative. The separator
// is not empty.
void SplitAtSpace(std::string_view text, int64_t most, const PartSink& sink);
void Split(std::string_view text, std::string_view separator, int64_t most, const PartSink& sink);
// str.splitlines.
void SplitLines(std::string_view text, const PartSink& sink);

// Case is mapped for ASCII text only. False if a character that is not ASCII has an upper and a lower case.
bool HasSimpleCase(std::string_view text);
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Title(std::string_view text);  // str.title; words are runs of letters

// repr() of a str and of a float.
std::string Quote(std::string_view text);
std::string Format(double value);

}  // namespace shiftrt::jinja
