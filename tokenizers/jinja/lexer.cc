// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "runtime/check.h"
#include "runtime/printable.h"
#include "tokenizers/jinja/python_text.h"
#include "tokenizers/utf8.h"

namespace shiftrt::jinja {

void Source::FailAt(size_t at, const std::string& message) const {
  const std::string_view before = std::string_view(text).substr(0, std::min(at, text.size()));
  const size_t line = before.rfind('\n') + 1;  // 0 where there is none
  shiftrt::Fail("{}:{}:{}: {}", name, 1 + std::count(before.begin(), before.end(), '\n'),
                1 + Length(before.substr(line)), Printable(message, 2 * kMaxPrintable));
}

namespace {

std::string NormalizeLineEnds(std::string_view text) {
  std::string normal;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    normal += text[i] == '\r' ? '\n' : text[i];
  }
  return normal;
}

// Names are compared one by one where a template reads them, at the cost of one unit of work.
constexpr size_t kMaxName = 255;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

void AppendCodePoint(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
            static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  }
}

// The length of the white space at the beginning of `text`.
size_t SpaceLength(std::string_view text) { return text.size() - Strip(text, Side::kLeft).size(); }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> Run() {
    while (at_ < text_.size()) {
      const size_t tag = FindTag();
      AddData(tag);
      if (tag == text_.npos) break;
      at_ = tag + 2;
      if (Peek() == '-' || Peek() == '+') ++at_;
      switch (text_[tag + 1]) {
        case '#': SkipComment(tag); break;
        case '%': ReadTag(tag, TokenKind::kBlockBegin); break;
        default: ReadTag(tag, TokenKind::kPrintBegin);
      }
    }
    tokens_.push_back({TokenKind::kEnd, text_.size(), ""});
    return std::move(tokens_);
  }

 private:
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool Ahead(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  // The next "{{", "{%" or "{#".
  size_t FindTag() const {
    for (size_t tag = text_.find('{', at_); tag != text_.npos; tag = text_.find('{', tag + 1)) {
      if (tag + 1 == text_.size()) break;
      const char kind = text_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') return tag;
    }
    return text_.npos;
  }

  void AddData(size_t tag) {
    std::string_view data = text_.substr(at_, tag == text_.npos ? tag : tag - at_);
    if (tag != text_.npos) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign == '-') {
        data = Strip(data, Side::kRight);
      } else if (sign != '+' && text_[tag + 1] != '{') {  // lstrip_blocks
        const size_t line = data.rfind('\n') + 1;
        const bool at_line_start = line > 0 || at_ == 0 || text_[at_ - 1] == '\n';
        const std::string_view indent = data.substr(line);
        if (at_line_start && !indent.empty() && Strip(indent, Side::kLeft).empty()) data = data.substr(0, line);
      }
    }
    if (!data.empty()) tokens_.push_back({TokenKind::kData, at_, std::string(data)});
  }

  // Takes the end of a tag of `closing` ("%}") here, with the white space that it removes; false where there is none.
  bool TakeEnd(std::string_view closing, bool trims_line_end) {
    const char sign = Peek();
    const bool removes = sign == '-' && text_.substr(at_ + 1).starts_with(closing);
    const bool keeps = sign == '+' && trims_line_end && text_.substr(at_ + 1).starts_with(closing);
    if (!removes && !keeps && !Ahead(closing)) return false;
    at_ += closing.size() + (removes || keeps ? 1 : 0);
    if (removes) {
      at_ += SpaceLength(text_.substr(at_));
    } else if (!keeps && trims_line_end && Peek() == '\n') {
      ++at_;
    }
    return true;
  }

  void SkipComment(size_t begin) {
    for (; at_ < text_.size(); ++at_)
      if (TakeEnd("#}", true)) return;
    source_.Fail(begin, "a comment has no end");
  }

  void ReadTag(size_t begin, TokenKind kind) {
    const bool block = kind == TokenKind::kBlockBegin;
    tokens_.push_back({kind, begin, ""});
    std::string open;  // brackets; inside them "}}" is no end
    while (true) {
      at_ += SpaceLength(text_.substr(at_));
      if (at_ >= text_.size()) source_.Fail(begin, "a tag has no end");
      const size_t end = at_;
      if (open.empty() && TakeEnd(block ? "%}" : "}}", block)) {
        tokens_.push_back({block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, end, ""});
        return;
      }
      ReadToken(open);
    }
  }

  void ReadToken(std::string& open) {
    const char c = Peek();
    if (IsDigit(c)) return ReadNumber();
    if (IsNameStart(c)) return ReadName();
    if (c == '\'' || c == '"') return ReadString(c);
    ReadOperator(open);
  }

  void ReadName() {
    const size_t begin = at_;
    while (IsNameStart(Peek()) || IsDigit(Peek())) ++at_;
    if (at_ - begin > kMaxName) source_.Fail(begin, "a name of more than {} characters", kMaxName);
    if ((Peek() & 0x80) != 0) source_.Fail(begin, "a name that is not ASCII is not supported");
    std::string name(text_.substr(begin, at_ - begin));
    if (name == "raw" && tokens_.back().kind == TokenKind::kBlockBegin)
      source_.Fail(begin, "the block 'raw' is not supported");
    tokens_.push_back({TokenKind::kName, begin, std::move(name)});
  }

  size_t Digits(size_t ahead) const {
    size_t count = 0;
    while (IsDigit(Peek(ahead + count))) ++count;
    return count;
  }

  // Digits with a fraction, an exponent or both make a float; after "." digits are an index ("x.0.1").
  void ReadNumber() {
    const size_t begin = at_;
    size_t length = Digits(0);
    const size_t whole = length;
    if (begin == 0 || text_[begin - 1] != '.') {
      if (Peek(length) == '.' && Digits(length + 1) > 0) length += 1 + Digits(length + 1);
      if (Peek(length) == 'e' || Peek(length) == 'E') {
        const size_t sign = Peek(length + 1) == '+' || Peek(length + 1) == '-' ? 1 : 0;
        if (const size_t digits = Digits(length + 1 + sign); digits > 0) length += 1 + sign + digits;
      }
    }
    Token token{length > whole ? TokenKind::kFloat : TokenKind::kInteger, begin, ""};
    const char* const first = text_.data() + begin;
    const std::errc error = length > whole ? std::from_chars(first, first + length, token.number).ec
                                           : std::from_chars(first, first + length, token.integer).ec;
    at_ += length;
    const bool octal = whole > 1 && *first == '0' && length == whole;
    if (error != std::errc() || octal || IsNameStart(Peek()))
      source_.Fail(begin, "a number such as {} is not supported", text_.substr(begin, length + 1));
    tokens_.push_back(std::move(token));
  }

  void ReadString(char quote) {
    const size_t begin = at_++;
    Token token{TokenKind::kString, begin, ""};
    while (Peek() != quote) {
      if (at_ >= text_.size()) source_.Fail(begin, "a string has no end");
      if (Peek() == '\\') {
        ReadEscape(token.text);
      } else {
        token.text += text_[at_++];
      }
    }
    ++at_;
    tokens_.push_back(std::move(token));
  }

  // The escapes of a Python string; an unknown one keeps its backslash.
  void ReadEscape(std::string& out) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const size_t begin = at_++;
    if (at_ >= text_.size()) source_.Fail(begin, "a string has no end");
    const char c = text_[at_++];
    if (const size_t letter = kLetters.find(c); letter != kLetters.npos) {
      out += kMeanings[letter];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ReadHexEscape(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    } else if (IsDigit(c) || c == 'N') {
      source_.Fail(begin, "the escape \\{} is not supported", c);
    } else if (c != '\n') {
      out += {'\\', c};
    }
  }

  void ReadHexEscape(size_t begin, size_t digits, std::string& out) {
    const std::string_view hex = text_.substr(at_, digits);
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool whole = error == std::errc() && hex.size() == digits && end == hex.data() + digits;
    if (!whole || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      source_.Fail(begin, "\\{}{} is not a character", text_[at_ - 1], hex);
    AppendCodePoint(code, out);
    at_ += digits;
  }

  void ReadOperator(std::string& open) {
    constexpr std::string_view kPairs[] = {"**", "//", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingles = "+-/*%~[](){}><=.:|,";
    const size_t begin = at_;
    for (const std::string_view pair : kPairs)
      if (Ahead(pair)) {
        at_ += pair.size();
        tokens_.push_back({TokenKind::kOperator, begin, std::string(pair)});
        return;
      }
    const char c = Peek();
    if (kSingles.find(c) == kSingles.npos)
      source_.Fail(begin, "unexpected character '{}'", text_.substr(begin, FirstCharacter(text_.substr(begin)).length));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) source_.Fail(begin, "'{}' closes nothing", c);
      open.pop_back();
    }
    ++at_;
    tokens_.push_back({TokenKind::kOperator, begin, std::string(1, c)});
  }

  const Source& source_;
  const std::string_view text_;
  size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::string NormalizeSource(std::string_view text) {
  std::string normal = NormalizeLineEnds(text);
  if (normal.ends_with('\n')) normal.pop_back();
  return normal;
}

std::vector<Token> Tokenize(const Source& source) {
  size_t valid = 0;
  while (valid < source.text.size()) {
    const Utf8Span span = FirstCharacter(std::string_view(source.text).substr(valid));
    if (!span.valid) source.Fail(valid, "not valid UTF-8");
    valid += span.length;
  }
  return Lexer(source).Run();
}

}  // namespace shiftrt::jinja
