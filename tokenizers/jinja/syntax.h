// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template. Every name of a filter, a test or a method in it is known.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizers/jinja/builtins.h"

namespace shiftrt::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool tuple;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Negation {  // not x
  ExpressionPtr operand;
};
struct Sign {  // -x, +x
  bool minus;
  ExpressionPtr operand;
};
struct Logic {  // and, or
  bool conjunction;
  ExpressionPtr left, right;
};
enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo };
struct Arithmetic {
  Operator op;
  ExpressionPtr left, right;
};
struct Concatenation {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
enum class Relation { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct Comparison {  // a < b < c
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> rest;
};
struct Conditional {            // yes if test else no
  ExpressionPtr test, yes, no;  // `no` may be null
};
struct AttributeOf {
  ExpressionPtr object;
  std::string name;
};
struct ItemOf {
  ExpressionPtr object, key;
};
struct SliceOf {
  ExpressionPtr object, begin, end, step;  // the last three may be null
};
struct CallArguments {
  std::vector<ExpressionPtr> values;  // positional ones first
  std::vector<std::string> keywords;  // keywords of the last values
  size_t positional() const { return values.size() - keywords.size(); }
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct Filtered {
  ExpressionPtr subject;  // null in {% set x | filter %}: the text of the block
  const Builtin* filter;
  CallArguments arguments;
};
struct Tested {
  ExpressionPtr subject;
  const Builtin* test;
  CallArguments arguments;
};

struct Expression {
  size_t at;  // byte of the source
  std::variant<Constant, Name, ListLiteral, DictLiteral, Negation, Sign, Logic, Arithmetic, Concatenation, Comparison,
               Conditional, AttributeOf, ItemOf, SliceOf, Call, Filtered, Tested>
      form;
};

struct Statement;
using Body = std::vector<Statement>;

// The target of an assignment: one name, several names that share a sequence, or an attribute of a namespace.
struct Target {
  size_t at = 0;
  std::vector<std::string> names;
  bool unpacks = false;
  std::string attribute;  // "" unless names[0] is a namespace
};

struct Data {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filters;  // null, or Filtered whose innermost subject is null
  Body body;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExpressionPtr sequence, condition;  // the condition may be null
  Body body, otherwise;
};
struct Macro {
  std::string name;
  Signature signature;  // its views point into `parameters`
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // one per parameter; null if it has none
  Body body;
};
struct Scope {  // {% generation %}, which marks what the model writes
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  size_t at;
  std::variant<Data, Print, Set, SetBlock, If, For, std::unique_ptr<Macro>, Scope, Break, Continue> form;
};

}  // namespace shiftrt::jinja
