// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/answers.h"

#include <algorithm>

#include "runtime/parse.h"

namespace shiftrt {

namespace {

constexpr std::string_view kHashes = "#### ";
constexpr std::string_view kTheAnswerIs = "The answer is ";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNumeric(char c) { return IsDigit(c) || c == '.' || c == ','; }

// The characters from `at` on that are all of a kind.
template <typename Is>
size_t Run(std::string_view text, size_t at, Is&& is) {
  size_t end = at;
  while (end < text.size() && is(text[end])) ++end;
  return end - at;
}

// The characters of a match of LastNumber's expression that begins at `at`; 0 if none does.
size_t MatchOfNumber(std::string_view text, size_t at) {
  const size_t sign = text[at] == '-' ? 1 : 0;
  const size_t numeric = Run(text, at + sign, [](char c) { return IsNumeric(c) || c == '$'; });
  if (numeric >= 2) return sign + numeric;
  const size_t digits = Run(text, at + sign, IsDigit);
  return digits > 0 ? sign + digits : 0;
}

std::string Normal(std::string_view text) {
  std::string kept;
  for (const char c : text)
    if (c != ',' && c != '$') kept += c;
  if (const size_t hashes = kept.rfind(kHashes); hashes != std::string::npos) kept.erase(0, hashes + kHashes.size());
  // A "$" of Python's expressions also matches before a final line end.
  const size_t line = kept.ends_with('\n') ? 1 : 0;
  if (kept.size() > line && kept[kept.size() - line - 1] == '.') kept.erase(kept.size() - line - 1, 1);
  return AsciiLower(kept);
}

}  // namespace

std::string NumberAfterHashes(std::string_view reply) {
  for (size_t at = reply.find(kHashes); at != std::string_view::npos; at = reply.find(kHashes, at + 1)) {
    const size_t begin = at + kHashes.size();
    const size_t sign = begin < reply.size() && reply[begin] == '-' ? 1 : 0;
    const size_t numeric = Run(reply, begin + sign, IsNumeric);
    if (numeric > 0) return std::string(reply.substr(begin, sign + numeric));
  }
  return kNoNumber;
}

std::string NumberAfterTheAnswerIs(std::string_view reply) {
  for (size_t at = reply.find(kTheAnswerIs); at != std::string_view::npos; at = reply.find(kTheAnswerIs, at + 1)) {
    const size_t begin = at + kTheAnswerIs.size();
    const size_t sign = begin < reply.size() && reply[begin] == '-' ? 1 : 0;
    size_t numeric = Run(reply, begin + sign, IsNumeric);
    const size_t end = begin + sign + numeric;
    if (end == reply.size() || reply[end] == '\n') numeric -= std::min<size_t>(numeric, 1);
    if (numeric > 0) return std::string(reply.substr(begin, sign + numeric));
  }
  return kNoNumber;
}

std::string LastNumber(std::string_view reply) {
  std::string_view last = kNoNumber;
  for (size_t at = 0; at < reply.size();) {
    const size_t length = MatchOfNumber(reply, at);
    if (length > 0) last = reply.substr(at, length);
    at += std::max<size_t>(length, 1);
  }
  return std::string(last);
}

bool SameNumber(std::string_view one, std::string_view other) { return Normal(one) == Normal(other); }

}  // namespace shiftrt
