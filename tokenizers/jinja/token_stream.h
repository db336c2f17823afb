// SPDX-License-Identifier: Apache-2.0
// The tokens of a template as the parser takes them, one after the other.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/jinja/lexer.h"

namespace shiftrt::jinja {

// Bounds the recursion of the parser.
inline constexpr int kMaxParserDepth = 160;

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class TokenStream {
 public:
  explicit TokenStream(const Source& source) : source_(source), tokens_(Tokenize(source)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  size_t Here() const { return Current().at; }
  Token Take() {
    Token token = Current();
    Skip();
    return token;
  }
  // Goes past the current token; the last one stays.
  void Skip(size_t count = 1) { at_ = std::min(at_ + count, tokens_.size() - 1); }
  bool Is(TokenKind kind) const { return Current().kind == kind; }
  bool IsOperator(std::string_view text) const {
    return Current().kind == TokenKind::kOperator && Current().text == text;
  }
  bool IsWord(std::string_view text) const { return Current().kind == TokenKind::kName && Current().text == text; }
  bool TakeOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    Skip();
    return true;
  }
  bool TakeWord(std::string_view text) {
    if (!IsWord(text)) return false;
    Skip();
    return true;
  }
  std::string Describe() const {
    switch (Current().kind) {
      case TokenKind::kName:
      case TokenKind::kOperator: return fmt::format("'{}'", Current().text);
      case TokenKind::kString: return "a string";
      case TokenKind::kInteger:
      case TokenKind::kFloat: return "a number";
      case TokenKind::kPrintEnd: return "'}}'";
      case TokenKind::kBlockEnd: return "'%}'";
      default: return "the end of the template";
    }
  }
  template <typename... Args>
  [[noreturn]] void Fail(size_t at, fmt::format_string<Args...> format, Args&&... args) const {
    source_.Fail(at, format, std::forward<Args>(args)...);
  }
  [[noreturn]] void FailExpected(std::string_view what) const {
    source_.Fail(Here(), "expected {}, found {}", what, Describe());
  }
  void Expect(std::string_view text) {
    if (!TakeOperator(text)) FailExpected(fmt::format("'{}'", text));
  }
  std::string ExpectName(std::string_view what) {
    if (Current().kind != TokenKind::kName) FailExpected(what);
    return Take().text;
  }
  void ExpectKind(TokenKind kind, std::string_view what) {
    if (Current().kind != kind) FailExpected(what);
    Skip();
  }

  // One more nested call of the parser's functions.
  class Deeper {
   public:
    explicit Deeper(TokenStream& stream) : depth_(stream.depth_) {
      if (++depth_ > kMaxParserDepth)
        stream.Fail(stream.Here(), "the template is nested more than {} levels deep", kMaxParserDepth);
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

 private:
  const Source& source_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace shiftrt::jinja
