// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/parser.h"

#include <algorithm>

#include "tokenizers/jinja/expressions.h"

namespace shiftrt::jinja {

namespace {

class Parser {
 public:
  explicit Parser(const Source& source) : in_(source), expressions_(in_) {}

  Body Run() {
    Body body = ParseBody({});
    expressions_.CheckNames();
    return body;
  }

 private:
  // Up to one of the tags `ends`, whose word is then the current token; up to the end of the template without any.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const TokenStream::Deeper guard(in_);
    Body body;
    while (!in_.Is(TokenKind::kEnd)) {
      const size_t at = in_.Here();
      if (in_.Is(TokenKind::kData)) {
        body.push_back({at, Data{in_.Take().text}});
      } else if (in_.Is(TokenKind::kPrintBegin)) {
        in_.Skip();
        body.push_back({at, Print{expressions_.Whole()}});
        in_.ExpectKind(TokenKind::kPrintEnd, "'}}'");
      } else {
        in_.ExpectKind(TokenKind::kBlockBegin, "a tag");
        if (in_.Is(TokenKind::kName) && Has(ends, in_.Current().text)) return body;
        body.push_back(ParseStatement());
        in_.ExpectKind(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) in_.Fail(in_.Here(), "the template ends before '{}'", *(ends.end() - 1));
    return body;
  }

  Body ParseBlock(std::initializer_list<std::string_view> ends) {
    in_.TakeOperator(":");
    in_.ExpectKind(TokenKind::kBlockEnd, "'%}'");
    return ParseBody(ends);
  }

  // A body in which no loop around it can be left: what Jinja makes a function of, and the block of `set`.
  Body ParseClosedBlock(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBlock({end});
    in_.Skip();
    loops_ = loops;
    return body;
  }

  Statement ParseStatement() {
    const size_t at = in_.Here();
    const std::string tag = in_.ExpectName("the name of a tag");
    if (tag == "set") return ParseSet(at);
    if (tag == "if") return {at, ParseIf()};
    if (tag == "for") return {at, ParseFor()};
    if (tag == "macro") return {at, ParseMacro()};
    if (tag == "generation") return {at, Scope{ParseClosedBlock("endgeneration")}};
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) in_.Fail(at, "'{}' is outside of a loop", tag);
      if (tag == "break") return {at, Break{}};
      return {at, Continue{}};
    }
    in_.Fail(at, "the tag '{}' is not supported here", tag);
  }

  Statement ParseSet(size_t at) {
    Target target = ParseTarget(true);
    if (in_.TakeOperator("=")) {
      ExpressionPtr value = expressions_.Whole();
      return {at, Set{std::move(target), std::move(value)}};
    }
    ExpressionPtr filters = in_.IsOperator("|") ? expressions_.Filters() : nullptr;
    Body body = ParseClosedBlock("endset");
    return {at, SetBlock{std::move(target), std::move(filters), std::move(body)}};
  }

  Target ParseTarget(bool with_attribute) {
    Target target;
    target.at = in_.Here();
    const bool parentheses = in_.TakeOperator("(");
    do {
      if (target.unpacks && !in_.Is(TokenKind::kName)) break;  // a comma at the end
      target.names.push_back(in_.ExpectName("a name to assign to"));
      if (Has(std::initializer_list<std::string_view>{"true", "false", "True", "False", "none", "None", "loop"},
              target.names.back()))
        in_.Fail(target.at, "'{}' cannot be assigned to", target.names.back());
      if (with_attribute && in_.TakeOperator(".")) {
        target.attribute = in_.ExpectName("the name of an attribute");
        if (target.unpacks || in_.IsOperator(","))
          in_.Fail(target.at, "an attribute among several targets is not supported");
        if (target.attribute.starts_with("_")) in_.Fail(target.at, "'{}' cannot be assigned to", target.attribute);
        break;
      }
      target.unpacks = target.unpacks || in_.IsOperator(",");
    } while (in_.TakeOperator(","));
    if (parentheses) in_.Expect(")");
    if (target.attribute.empty())
      for (const std::string& name : target.names) expressions_.Assign(name);
    return target;
  }

  If ParseIf() {
    If result;
    do {
      ExpressionPtr test = expressions_.Condition();
      Body body = ParseBlock({"elif", "else", "endif"});
      result.branches.emplace_back(std::move(test), std::move(body));
    } while (in_.TakeWord("elif"));
    if (in_.TakeWord("else")) result.otherwise = ParseBlock({"endif"});
    in_.Skip();
    return result;
  }

  For ParseFor() {
    For result;
    result.target = ParseTarget(false);
    if (!in_.TakeWord("in")) in_.FailExpected("'in'");
    result.sequence = expressions_.Condition();
    if (in_.TakeWord("if")) result.condition = expressions_.Single();
    if (in_.IsWord("recursive")) in_.Fail(in_.Here(), "a recursive loop is not supported");
    ++loops_;
    result.body = ParseBlock({"endfor", "else"});
    --loops_;
    if (in_.TakeWord("else")) result.otherwise = ParseBlock({"endfor"});
    in_.Skip();
    return result;
  }

  std::unique_ptr<Macro> ParseMacro() {
    auto macro = std::make_unique<Macro>();
    macro->name = in_.ExpectName("the name of a macro");
    expressions_.Assign(macro->name);
    in_.Expect("(");
    while (!in_.TakeOperator(")")) {
      if (!macro->parameters.empty()) in_.Expect(",");
      const size_t at = in_.Here();
      macro->parameters.push_back(in_.ExpectName("the name of a parameter"));
      expressions_.Assign(macro->parameters.back());
      if (std::count(macro->parameters.begin(), macro->parameters.end(), macro->parameters.back()) > 1)
        in_.Fail(at, "the parameter '{}' is there twice", macro->parameters.back());
      macro->defaults.push_back(in_.TakeOperator("=") ? expressions_.Single() : nullptr);
      if (macro->defaults.back() == nullptr && macro->defaults.size() > 1 && *(macro->defaults.end() - 2) != nullptr)
        in_.Fail(at, "the parameter '{}' has no default, but one before it has", macro->parameters.back());
    }
    macro->signature.parameters.assign(macro->parameters.begin(), macro->parameters.end());
    macro->body = ParseClosedBlock("endmacro");
    return macro;
  }

  TokenStream in_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current statement
};

}  // namespace

Body Parse(const Source& source) { return Parser(source).Run(); }

}  // namespace shiftrt::jinja
