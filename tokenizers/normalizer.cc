// SPDX-License-Identifier: Apache-2.0
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "runtime/check.h"
#include "tokenizers/pretokenizer.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

std::string Normalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const auto& step : steps_) out = std::visit([&](const auto& one) { return Run(one, out, text.size()); }, step);
  return out;
}

std::string Normalizer::Run(const Form& form, const std::string& text, size_t /*size*/) {
  // No form changes ASCII, and NFC nothing below U+0300 (lead byte 0xCC).
  const uint8_t first = form == Form::kNfc ? 0xCC : 0x80;
  if (std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<uint8_t>(c) < first; })) return text;
  int options = UTF8PROC_STABLE;
  options |= form == Form::kNfc || form == Form::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  Check(length >= 0, "text cannot be normalized: {}", utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
}

std::string Normalizer::Run(const Prepend& step, const std::string& text, size_t /*size*/) {
  return text.empty() ? text : step.prefix + text;
}

std::string Normalizer::Run(const Replace& step, const std::string& text, size_t size) {
  return ReplaceWithin(size, text, step.from, step.to);
}

std::string Normalizer::Run(const ReplaceMatches& step, const std::string& text, size_t size) {
  std::string out;
  step.from.Split(text, [&](std::string_view piece, bool matched) {
    out += matched ? std::string_view(step.to) : piece;
    Check(out.size() <= MostReplaced(size), "a Replace of the normalizer makes more than {} bytes of a text",
          MostReplaced(size));
  });
  return out;
}

// Character by character, as the library does: a final sigma is not looked for.
std::string Normalizer::Run(const Lowercase& /*step*/, const std::string& text, size_t /*size*/) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t length = FirstCharacter(rest).length;
    const char32_t c = CodePoint(rest.substr(0, length));
    rest.remove_prefix(length);
    if (c == U'\u0130') {  // the only one whose lower case is two characters
      out += "i\u0307";
      continue;
    }
    std::array<utf8proc_uint8_t, 4> bytes = {};
    const auto count = utf8proc_encode_char(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
  }
  return out;
}

std::string Normalizer::Run(const Strip& step, const std::string& text, size_t /*size*/) {
  const std::string_view all = text;
  const size_t begin = step.left ? LeadingSpace(all) : 0;
  const size_t end = step.right ? TrailingSpace(all.substr(begin)) + begin : all.size();
  return std::string(all.substr(begin, end - begin));
}

}  // namespace shiftrt
