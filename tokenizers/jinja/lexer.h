// SPDX-License-Identifier: Apache-2.0
// The tokens of a Jinja template, with the white-space rules of Jinja 3.1 under trim_blocks and lstrip_blocks
// (jinja2/lexer.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizers/jinja/source.h"

namespace shiftrt::jinja {

enum class TokenKind {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  size_t at;         // byte of the source
  std::string text;  // the data, the name, the operator, or the string without quotes and escapes
  int64_t integer = 0;
  double number = 0;
};

// The source of a template as Jinja reads it: every line end is "\n", and one line end at the end is dropped.
std::string NormalizeSource(std::string_view text);

// Ends with a token kEnd. Throws Error with the place for what Jinja refuses, and for the `raw` block, integers beyond
// 64 bits and names that are not ASCII, which this subset does not have.
std::vector<Token> Tokenize(const Source& source);

}  // namespace shiftrt::jinja
