// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "runtime/check.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kTekkenPattern = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                   R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                   R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kPunctuationPattern = R"([\p{P}!-/:-@\[-`{-~])";

namespace {

// Rewrites a pattern for PCRE2, one construct at a time.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : rest_(pattern), pattern_(pattern), where_(where) {}

  std::string Run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        Escape();
      } else if (in_class_) {
        ClassCharacter();
      } else {
        Character();
      }
    }
    return std::move(out_);
  }

 private:
  void Take(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void Refuse(size_t count) {
    Fail("{}: '{}' in the pattern '{}' is not supported", where_, rest_.substr(0, count), pattern_);
  }

  void Escape() {
    if (rest_.size() < 2) Refuse(1);
    const char c = rest_[1];
    if (c == 's' || c == 'S') {  // PCRE2 counts U+180E as space, as Unicode did before version 6.3
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      rest_.remove_prefix(2);
    } else if (c == 'p' || c == 'P') {
      const size_t end = rest_.substr(2).starts_with('{') ? rest_.find('}') : std::string_view::npos;
      if (end == std::string_view::npos) Refuse(2);
      Take(end + 1);
    } else if (std::string_view("rntdD").find(c) != std::string_view::npos || std::ispunct(static_cast<uint8_t>(c))) {
      Take(2);
    } else {
      Refuse(2);
    }
  }

  void ClassCharacter() {
    if (rest_[0] == '[' || rest_.starts_with("&&")) Refuse(2);  // set operations
    in_class_ = rest_[0] != ']';
    Take(1);
  }

  void Character() {
    if (rest_[0] == '[') {
      in_class_ = true;
      Take(rest_.starts_with("[^") ? 2 : 1);
      if (rest_.starts_with("]")) Refuse(1);
    } else if (rest_.starts_with("(?")) {
      Group();
    } else if (rest_[0] == '^' || rest_[0] == '$') {
      Anchor();
    } else if (rest_.starts_with("(*") || rest_.starts_with("}+")) {
      Refuse(2);  // verbs, possessive or repeated intervals
    } else {
      Take(1);
    }
  }

  // In Oniguruma, lines end at "\n" alone, a text may end with an empty line for $ and not for ^, and both look at the
  // whole text.
  void Anchor() {
    if (rest_.size() > 1 && std::string_view("*+?{").find(rest_[1]) != std::string_view::npos) Refuse(2);
    out_ += rest_[0] == '$' ? "(?![^\\n])" : "(?:\\A|(?<=\\n)(?!\\z))";
    rest_.remove_prefix(1);
  }

  void Group() {
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i)"})
      if (rest_.starts_with(opening)) return Take(opening.size());
    Refuse(4);
  }

  std::string_view rest_, pattern_;
  const std::string& where_;
  std::string out_;
  bool in_class_ = false;
};

std::string PcreMessage(int code) {
  std::array<PCRE2_UCHAR, 256> buffer = {};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

SplitPattern::SplitPattern(const std::string& pattern, const std::string& where) : where_(where) {
  const std::string translated = Translator(pattern, where).Run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  Check(code != nullptr, "{}: the pattern '{}' does not compile: {}", where, pattern, PcreMessage(error));
  code_ = std::shared_ptr<pcre2_code>(code, &pcre2_code_free);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  Check(matches_empty == 0, "{}: the pattern '{}' matches the empty text", where, pattern);
  // On a machine without the JIT, PCRE2 interprets the same code.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

void SplitPattern::Split(std::string_view text, const std::function<void(std::string_view, bool)>& on_piece) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  Check(match != nullptr, "{}: out of memory", where_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  while (done < text.size()) {
    // Checking the UTF-8 of the whole text again at every match would take quadratic time.
    const int found =
        pcre2_match(code_.get(), subject, text.size(), done, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    Check(found >= 0, "{}: the pre-tokenizer's pattern fails on this text: {}", where_, PcreMessage(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[0] > done) on_piece(text.substr(done, range[0] - done), false);
    on_piece(text.substr(range[0], range[1] - range[0]), true);
    done = range[1];
  }
  if (done < text.size()) on_piece(text.substr(done), false);
}

void PreTokenizer::RunMergingSplit(const MergingSplit& split, std::string_view text, const PieceSink& next) const {
  std::string_view held;  // the piece that the next one may join
  bool held_joins = false;
  split.pattern.Split(text, [&](std::string_view piece, bool matched) {
    const bool joins = matched != split.invert;
    const bool together = split.joining == Joining::kAlike  ? joins == held_joins
                          : split.joining == Joining::kNext ? held_joins && !joins
                                                            : joins && !held_joins;
    if (!held.empty() && together) {
      held = {held.data(), held.size() + piece.size()};
    } else {
      if (!held.empty()) next(held);
      held = piece;
    }
    held_joins = joins;
  });
  if (!held.empty()) next(held);
}

void PreTokenizer::RunMetaspace(const Metaspace& metaspace, std::string_view text, bool at_start,
                                const std::function<void(std::string_view, bool)>& next) const {
  const std::string& mark = metaspace.replacement;
  std::string marked = ReplaceWithin(text.size(), text, " ", mark);
  const bool prepend = metaspace.prepend == Prepend::kAlways || (metaspace.prepend == Prepend::kFirst && at_start);
  if (prepend && !marked.starts_with(mark)) marked.insert(0, mark);
  const std::string_view all = marked;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = metaspace.split ? std::min(all.find(mark, begin + 1), all.size()) : all.size();
    next(all.substr(begin, end - begin), at_start && begin == 0);
    begin = end;
  }
}

void PreTokenizer::Run(size_t step, std::string_view text, bool at_start, const PieceSink& sink) const {
  if (text.empty()) return;
  if (step == steps_.size()) return sink(text);
  if (const auto* split = std::get_if<SplitStep>(&steps_[step])) {
    split->pattern.Split(text, [&](std::string_view piece, bool matched) {
      if (matched ? split->keep_matches : split->keep_rest)
        Run(step + 1, piece, at_start && piece.data() == text.data(), sink);
    });
  } else if (const auto* merging = std::get_if<MergingSplit>(&steps_[step])) {
    RunMergingSplit(*merging, text, [&](std::string_view piece) {
      Run(step + 1, piece, at_start && piece.data() == text.data(), sink);
    });
  } else if (const auto* metaspace = std::get_if<Metaspace>(&steps_[step])) {
    RunMetaspace(*metaspace, text, at_start,
                 [&](std::string_view piece, bool first) { Run(step + 1, piece, first, sink); });
  } else if (std::holds_alternative<ByteAlphabet>(steps_[step])) {
    Run(step + 1, BytesToAlphabet(text), at_start, sink);
  } else {
    Run(step + 1, text.starts_with(' ') ? std::string(text) : " " + std::string(text), at_start, sink);
  }
}

}  // namespace shiftrt
