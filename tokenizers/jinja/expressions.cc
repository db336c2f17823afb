// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/expressions.h"

#include <algorithm>

namespace shiftrt::jinja {

namespace {

// Names that mean something in Jinja which is not supported here.
constexpr std::string_view kReserved[] = {"self", "caller", "varargs", "kwargs", "dict", "cycler", "joiner", "lipsum"};
constexpr std::string_view kLoopAttributes[] = {"index", "index0", "revindex", "revindex0", "length",
                                                "first", "last",   "previtem", "nextitem"};

}  // namespace

void ExpressionParser::CheckNames() const {
  for (const auto& [at, name] : read_)
    if (Has(kReserved, name) && !assigned_.contains(name)) in_.Fail(at, "'{}' is not supported", name);
  for (const auto& [at, name] : called_)
    if (!FindFunction(name) && !assigned_.contains(name)) in_.Fail(at, "the function '{}' is not supported", name);
}

// Expressions, from the loosest binding to the tightest.

bool ExpressionParser::EndsTuple() const {
  return in_.Is(TokenKind::kPrintEnd) || in_.Is(TokenKind::kBlockEnd) || in_.IsOperator(")");
}

// One expression, or several with commas: a tuple. In the head of a loop "if" begins its condition.
ExpressionPtr ExpressionParser::ParseTuple(bool with_conditional) {
  const TokenStream::Deeper guard(in_);
  const size_t at = in_.Here();
  std::vector<ExpressionPtr> items;
  bool tuple = false;
  do {
    if (tuple && EndsTuple()) break;
    items.push_back(with_conditional ? ParseExpression() : ParseOr());
    tuple = tuple || in_.IsOperator(",");
  } while (in_.TakeOperator(","));
  if (!tuple) return std::move(items.front());
  return Make(at, ListLiteral{std::move(items), true});
}

ExpressionPtr ExpressionParser::ParseExpression() {
  const TokenStream::Deeper guard(in_);
  const size_t at = in_.Here();
  ExpressionPtr value = ParseOr();
  while (in_.TakeWord("if")) {
    ExpressionPtr test = ParseOr();
    ExpressionPtr no = in_.TakeWord("else") ? ParseExpression() : nullptr;
    value = Make(at, Conditional{std::move(test), std::move(value), std::move(no)});
  }
  return value;
}

ExpressionPtr ExpressionParser::ParseOr() {
  const size_t at = in_.Here();
  ExpressionPtr left = ParseAnd();
  while (in_.TakeWord("or")) left = Make(at, Logic{false, std::move(left), ParseAnd()});
  return left;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  const size_t at = in_.Here();
  ExpressionPtr left = ParseNot();
  while (in_.TakeWord("and")) left = Make(at, Logic{true, std::move(left), ParseNot()});
  return left;
}

ExpressionPtr ExpressionParser::ParseNot() {
  const TokenStream::Deeper guard(in_);
  const size_t at = in_.Here();
  if (in_.TakeWord("not")) return Make(at, Negation{ParseNot()});
  return ParseComparison();
}

std::optional<Relation> ExpressionParser::TakeRelation() {
  constexpr std::pair<std::string_view, Relation> kRelations[] = {
      {"==", Relation::kEqual},     {"!=", Relation::kNotEqual}, {"<", Relation::kLess},
      {"<=", Relation::kLessEqual}, {">", Relation::kGreater},   {">=", Relation::kGreaterEqual}};
  for (const auto& [text, relation] : kRelations)
    if (in_.TakeOperator(text)) return relation;
  if (in_.TakeWord("in")) return Relation::kIn;
  if (in_.IsWord("not") && in_.Next().kind == TokenKind::kName && in_.Next().text == "in") {
    in_.Skip(2);
    return Relation::kNotIn;
  }
  return std::nullopt;
}

ExpressionPtr ExpressionParser::ParseComparison() {
  const size_t at = in_.Here();
  ExpressionPtr first = ParseSum();
  std::vector<std::pair<Relation, ExpressionPtr>> rest;
  while (const auto relation = TakeRelation()) rest.emplace_back(*relation, ParseSum());
  if (rest.empty()) return first;
  return Make(at, Comparison{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::ParseSum() {
  ExpressionPtr left = ParseConcatenation();
  while (in_.IsOperator("+") || in_.IsOperator("-")) {
    const size_t at = in_.Here();
    const Operator op = in_.Take().text == "+" ? Operator::kAdd : Operator::kSubtract;
    left = Make(at, Arithmetic{op, std::move(left), ParseConcatenation()});
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseConcatenation() {
  const size_t at = in_.Here();
  std::vector<ExpressionPtr> parts;
  do parts.push_back(ParseProduct());
  while (in_.TakeOperator("~"));
  if (parts.size() == 1) return std::move(parts.front());
  return Make(at, Concatenation{std::move(parts)});
}

ExpressionPtr ExpressionParser::ParseProduct() {
  constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
  ExpressionPtr left = ParseUnary(true);
  while (true) {
    const size_t at = in_.Here();
    if (in_.IsOperator("**")) in_.Fail(at, "the operator '**' is not supported");
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& one) { return in_.IsOperator(one.first); });
    if (found == std::end(kOperators)) return left;
    in_.Skip();
    left = Make(at, Arithmetic{found->second, std::move(left), ParseUnary(true)});
  }
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  const TokenStream::Deeper guard(in_);
  const size_t at = in_.Here();
  ExpressionPtr value;
  if (in_.IsOperator("-") || in_.IsOperator("+")) {
    const bool minus = in_.Take().text == "-";
    value = Make(at, Sign{minus, ParseUnary(false)});
  } else {
    value = ParsePrimary();
  }
  value = ParsePostfix(std::move(value));
  return with_filters ? ParseFilters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const size_t at = in_.Here();
  switch (in_.Current().kind) {
    case TokenKind::kName: return ParseName();
    case TokenKind::kString: {
      std::string text;
      while (in_.Is(TokenKind::kString)) text += in_.Take().text;
      return Make(at, Constant{std::make_shared<const Text>(Text{std::move(text)})});
    }
    case TokenKind::kInteger: return Make(at, Constant{in_.Take().integer});
    case TokenKind::kFloat: return Make(at, Constant{in_.Take().number});
    default: break;
  }
  if (in_.TakeOperator("(")) {
    if (in_.TakeOperator(")")) return Make(at, ListLiteral{{}, true});
    ExpressionPtr value = ParseTuple(true);
    in_.Expect(")");
    return value;
  }
  if (in_.TakeOperator("[")) return ParseList(at);
  if (in_.TakeOperator("{")) return ParseDict(at);
  in_.FailExpected("an expression");
}

ExpressionPtr ExpressionParser::ParseName() {
  const size_t at = in_.Here();
  const std::string name = in_.Take().text;
  if (name == "true" || name == "True") return Make(at, Constant{true});
  if (name == "false" || name == "False") return Make(at, Constant{false});
  if (name == "none" || name == "None") return Make(at, Constant{nullptr});
  read_.emplace_back(at, name);
  return Make(at, Name{name});
}

ExpressionPtr ExpressionParser::ParseList(size_t at) {
  std::vector<ExpressionPtr> items;
  while (!in_.TakeOperator("]")) {
    if (!items.empty()) in_.Expect(",");
    if (in_.TakeOperator("]")) break;
    items.push_back(ParseExpression());
  }
  return Make(at, ListLiteral{std::move(items), false});
}

ExpressionPtr ExpressionParser::ParseDict(size_t at) {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
  while (!in_.TakeOperator("}")) {
    if (!entries.empty()) in_.Expect(",");
    if (in_.TakeOperator("}")) break;
    ExpressionPtr key = ParseExpression();
    const auto* constant = std::get_if<Constant>(&key->form);
    if (constant != nullptr && !AsText(constant->value) && !Is<int64_t>(constant->value))
      in_.Fail(key->at, "a key of a dict that is a {} is not supported", TypeName(constant->value));
    in_.Expect(":");
    entries.emplace_back(std::move(key), ParseExpression());
  }
  return Make(at, DictLiteral{std::move(entries)});
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr value) {
  while (true) {
    if (in_.IsOperator(".")) {
      value = ParseAttribute(std::move(value));
    } else if (in_.IsOperator("[")) {
      value = ParseSubscript(std::move(value));
    } else if (in_.IsOperator("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::ParseAttribute(ExpressionPtr object) {
  in_.Skip();
  const size_t at = in_.Here();
  if (in_.Is(TokenKind::kInteger)) {
    const int64_t index = in_.Take().integer;
    return Make(at, ItemOf{std::move(object), Make(at, Constant{index})});
  }
  const std::string name = in_.ExpectName("the name of an attribute");
  const Name* of = std::get_if<Name>(&object->form);
  if (of != nullptr && of->name == "loop" && !Has(kLoopAttributes, name))
    in_.Fail(at, "'loop.{}' is not supported", name);
  return Make(at, AttributeOf{std::move(object), name});
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr object) {
  const size_t at = in_.Here();
  in_.Skip();
  const auto bound = [&]() -> ExpressionPtr {
    return in_.IsOperator(":") || in_.IsOperator("]") ? nullptr : ParseExpression();
  };
  ExpressionPtr first = bound();
  if (!in_.IsOperator(":")) {
    if (first == nullptr) in_.FailExpected("an expression");
    in_.Expect("]");
    return Make(at, ItemOf{std::move(object), std::move(first)});
  }
  in_.Skip();
  ExpressionPtr end = bound();
  ExpressionPtr step = in_.TakeOperator(":") ? bound() : nullptr;
  in_.Expect("]");
  return Make(at, SliceOf{std::move(object), std::move(first), std::move(end), std::move(step)});
}

CallArguments ExpressionParser::ParseArguments() {
  in_.Expect("(");
  CallArguments arguments;
  while (!in_.TakeOperator(")")) {
    if (!arguments.values.empty()) in_.Expect(",");
    if (in_.TakeOperator(")")) break;
    if (in_.IsOperator("*") || in_.IsOperator("**"))
      in_.Fail(in_.Here(), "arguments with {} are not supported", in_.Describe());
    const bool keyword = in_.Is(TokenKind::kName) && in_.Next().kind == TokenKind::kOperator && in_.Next().text == "=";
    if (keyword) {
      arguments.keywords.push_back(in_.Take().text);
      in_.Skip();
    } else if (!arguments.keywords.empty()) {
      in_.FailExpected("a keyword argument, as those before it");
    }
    arguments.values.push_back(ParseExpression());
  }
  return arguments;
}

void ExpressionParser::CheckArguments(size_t at, std::string_view what, const Builtin& function,
                                      const CallArguments& arguments) {
  const std::string mismatch = function.signature.Mismatch(arguments.positional(), arguments.keywords);
  if (!mismatch.empty()) in_.Fail(at, "{} '{}' {}", what, function.name, mismatch);
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr callee) {
  const size_t at = callee->at;
  CallArguments arguments = ParseArguments();
  if (const auto* attribute = std::get_if<AttributeOf>(&callee->form)) {
    const Builtin* of_text = FindTextMethod(attribute->name);
    const Builtin* method = of_text ? of_text : FindMappingMethod(attribute->name);
    if (method == nullptr) in_.Fail(at, "the method '{}' is not supported", attribute->name);
    CheckArguments(at, "the method", *method, arguments);
  } else if (const auto* name = std::get_if<Name>(&callee->form)) {
    called_.emplace_back(at, name->name);
  }
  return Make(at, Call{std::move(callee), std::move(arguments)});
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr value) {
  while (true) {
    if (in_.TakeOperator("|")) {
      value = ParseFilter(std::move(value));
    } else if (value != nullptr && in_.IsWord("is")) {
      value = ParseTest(std::move(value));
    } else if (value != nullptr && in_.IsOperator("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilter(ExpressionPtr subject) {
  const size_t at = in_.Here();
  const std::string name = in_.ExpectName("the name of a filter");
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr || in_.IsOperator(".")) in_.Fail(at, "the filter '{}' is not supported", name);
  CallArguments arguments;
  if (in_.IsOperator("(")) arguments = ParseArguments();
  CheckArguments(at, "the filter", *filter, arguments);
  CheckNamed(at, *filter, arguments);
  return Make(at, Filtered{std::move(subject), filter, std::move(arguments)});
}

// Checks a named filter or test, as in map('upper') and selectattr('role', 'equalto', 'user'): the name must be known,
// and the further arguments must fit it.
void ExpressionParser::CheckNamed(size_t at, const Builtin& filter, const CallArguments& arguments) {
  const auto named = NamedArgument(filter);
  if (!named) return;
  if (arguments.positional() <= named->argument) {
    if (filter.name == "map" && !Has(arguments.keywords, "attribute"))
      in_.Fail(at, "the filter 'map' needs the name of a filter, or attribute=");
    return;
  }
  if (!arguments.keywords.empty())
    in_.Fail(at, "the filter '{}' with a name and keywords is not supported", filter.name);
  const auto* constant = std::get_if<Constant>(&arguments.values[named->argument]->form);
  const Text* name = constant != nullptr ? AsText(constant->value) : nullptr;
  const Builtin* found = name != nullptr ? named->find(name->text) : nullptr;
  if (found == nullptr)
    in_.Fail(arguments.values[named->argument]->at, "the filter '{}' needs a name that is known, as a string",
             filter.name);
  const std::string mismatch = found->signature.Mismatch(arguments.values.size() - named->argument - 1, {});
  if (!mismatch.empty() || NamedArgument(*found) || (filter.name == "map" && arguments.values.size() > 1))
    in_.Fail(at, "'{}' by the filter '{}' is not supported with these arguments", found->name, filter.name);
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr subject) {
  const size_t is = in_.Here();
  in_.Skip();
  const bool negated = in_.TakeWord("not");
  const size_t at = in_.Here();
  const std::string name = in_.IsOperator("==") || in_.IsOperator("!=") ? "" : in_.ExpectName("the name of a test");
  const Builtin* test = FindTest(name);
  if (test == nullptr || in_.IsOperator(".")) in_.Fail(at, "the test '{}' is not supported", name);
  CallArguments arguments;
  if (in_.IsOperator("(")) {
    arguments = ParseArguments();
  } else if (BeginsArgumentOfTest()) {
    if (in_.IsWord("is")) in_.Fail(in_.Here(), "tests cannot be chained with 'is'");
    arguments.values.push_back(ParsePostfix(ParsePrimary()));
  }
  CheckArguments(at, "the test", *test, arguments);
  ExpressionPtr result = Make(is, Tested{std::move(subject), test, std::move(arguments)});
  return negated ? Make(is, Negation{std::move(result)}) : std::move(result);
}

bool ExpressionParser::BeginsArgumentOfTest() const {
  switch (in_.Current().kind) {
    case TokenKind::kName: return !in_.IsWord("else") && !in_.IsWord("or") && !in_.IsWord("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat: return true;
    default: return in_.IsOperator("[") || in_.IsOperator("{");
  }
}

}  // namespace shiftrt::jinja
