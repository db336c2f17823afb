// SPDX-License-Identifier: Apache-2.0
// The grammar of expressions, as jinja2/parser.py has it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tokenizers/jinja/syntax.h"
#include "tokenizers/jinja/token_stream.h"

namespace shiftrt::jinja {

// Bounds the depth of one expression, with the recursion of the evaluator and of destructors.
inline constexpr int kMaxParts = 1000;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& in) : in_(in) {}

  // Each parses what begins at the current token, as its own expression.
  ExpressionPtr Single() { return Start().ParseExpression(); }
  ExpressionPtr Whole() { return Start().ParseTuple(true); }         // commas make a tuple
  ExpressionPtr Condition() { return Start().ParseTuple(false); }    // "if" is not a part of it
  ExpressionPtr Filters() { return Start().ParseFilters(nullptr); }  // "| filter ...", of the text of a block

  // A name that the template gives a value somewhere.
  void Assign(const std::string& name) { assigned_.insert(name); }
  // Throws for names that are read, and mean something in Jinja that is not supported here. Call it at the end.
  void CheckNames() const;

 private:
  // Begins to count the parts of another expression.
  ExpressionParser& Start() {
    parts_ = 0;
    return *this;
  }

  template <typename Form>
  ExpressionPtr Make(size_t at, Form form) {
    if (++parts_ > kMaxParts) in_.Fail(at, "an expression has more than {} parts", kMaxParts);
    return std::make_unique<Expression>(Expression{at, std::move(form)});
  }

  bool EndsTuple() const;
  ExpressionPtr ParseTuple(bool with_conditional);
  ExpressionPtr ParseExpression();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  std::optional<Relation> TakeRelation();
  ExpressionPtr ParseComparison();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcatenation();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseName();
  ExpressionPtr ParseList(size_t at);
  ExpressionPtr ParseDict(size_t at);
  ExpressionPtr ParsePostfix(ExpressionPtr value);
  ExpressionPtr ParseAttribute(ExpressionPtr object);
  ExpressionPtr ParseSubscript(ExpressionPtr object);
  CallArguments ParseArguments();
  void CheckArguments(size_t at, std::string_view what, const Builtin& function, const CallArguments& arguments);
  ExpressionPtr ParseCall(ExpressionPtr callee);
  ExpressionPtr ParseFilters(ExpressionPtr value);
  ExpressionPtr ParseFilter(ExpressionPtr subject);
  void CheckNamed(size_t at, const Builtin& filter, const CallArguments& arguments);
  ExpressionPtr ParseTest(ExpressionPtr subject);
  bool BeginsArgumentOfTest() const;

  TokenStream& in_;
  int parts_ = 0;
  std::set<std::string, std::less<>> assigned_;
  std::vector<std::pair<size_t, std::string>> read_, called_;  // names, and where
};

}  // namespace shiftrt::jinja
