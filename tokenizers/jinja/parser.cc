// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/parser.h"

#include <algorithm>
#include <set>

#include "tokenizers/jinja/lexer.h"

namespace shiftrt::jinja {

namespace {

// Bound the recursion over the tree, here, in the evaluator and when the tree is destroyed.
constexpr int kMaxParserDepth = 160;
constexpr int kMaxParts = 1000;

// Names that mean something in Jinja which is not supported here.
constexpr std::string_view kReserved[] = {"self", "caller", "varargs", "kwargs", "dict", "cycler", "joiner", "lipsum"};
constexpr std::string_view kLoopAttributes[] = {"index", "index0", "revindex", "revindex0", "length",
                                                "first", "last",   "previtem", "nextitem"};

template <typename Range>
bool Has(const Range& range, std::string_view name) {
  return std::find(std::begin(range), std::end(range), name) != std::end(range);
}

class Parser {
 public:
  explicit Parser(const Source& source) : source_(source), tokens_(Tokenize(source)) {}

  Body Run() {
    Body body = ParseBody({});
    for (const auto& [at, name] : read_)
      if (Has(kReserved, name) && !assigned_.contains(name)) source_.Fail(at, "'{}' is not supported", name);
    for (const auto& [at, name] : called_)
      if (!FindFunction(name) && !assigned_.contains(name))
        source_.Fail(at, "the function '{}' is not supported", name);
    return body;
  }

 private:
  // Counts nested calls of the parser's functions.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : depth_(parser.depth_) {
      if (++depth_ > kMaxParserDepth)
        parser.source_.Fail(parser.Here(), "the template is nested more than {} levels deep", kMaxParserDepth);
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  size_t Here() const { return Current().at; }
  Token Take() {
    Token token = Current();
    if (token.kind != TokenKind::kEnd) ++at_;
    return token;
  }
  bool IsOperator(std::string_view text) const {
    return Current().kind == TokenKind::kOperator && Current().text == text;
  }
  bool IsWord(std::string_view text) const { return Current().kind == TokenKind::kName && Current().text == text; }
  bool TakeOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view text) {
    if (!IsWord(text)) return false;
    ++at_;
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
  [[noreturn]] void FailExpected(std::string_view what) {
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
    ++at_;
  }

  template <typename Form>
  ExpressionPtr Make(size_t at, Form form) {
    if (++parts_ > kMaxParts) source_.Fail(at, "an expression has more than {} parts", kMaxParts);
    return std::make_unique<Expression>(Expression{at, std::move(form)});
  }

  // Statements.

  // Up to one of the tags `ends`, whose word is then the current token; up to the end of the template without any.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const Deeper guard(*this);
    Body body;
    while (Current().kind != TokenKind::kEnd) {
      const size_t at = Here();
      if (Current().kind == TokenKind::kData) {
        body.push_back({at, Data{Take().text}});
      } else if (Current().kind == TokenKind::kPrintBegin) {
        ++at_;
        body.push_back({at, Print{ParseWhole()}});
        ExpectKind(TokenKind::kPrintEnd, "'}}'");
      } else {
        ExpectKind(TokenKind::kBlockBegin, "a tag");
        if (Current().kind == TokenKind::kName && Has(ends, Current().text)) return body;
        body.push_back(ParseStatement());
        ExpectKind(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) source_.Fail(Here(), "the template ends before '{}'", *(ends.end() - 1));
    return body;
  }

  Body ParseBlock(std::initializer_list<std::string_view> ends) {
    TakeOperator(":");
    ExpectKind(TokenKind::kBlockEnd, "'%}'");
    return ParseBody(ends);
  }

  // A body in which no loop around it can be left: what Jinja makes a function of, and the block of `set`.
  Body ParseClosedBlock(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBlock({end});
    ++at_;
    loops_ = loops;
    return body;
  }

  Statement ParseStatement() {
    const size_t at = Here();
    const std::string tag = ExpectName("the name of a tag");
    if (tag == "set") return ParseSet(at);
    if (tag == "if") return {at, ParseIf()};
    if (tag == "for") return {at, ParseFor()};
    if (tag == "macro") return {at, ParseMacro()};
    if (tag == "generation") return {at, Scope{ParseClosedBlock("endgeneration")}};
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) source_.Fail(at, "'{}' is outside of a loop", tag);
      if (tag == "break") return {at, Break{}};
      return {at, Continue{}};
    }
    source_.Fail(at, "the tag '{}' is not supported here", tag);
  }

  Statement ParseSet(size_t at) {
    Target target = ParseTarget(true);
    if (TakeOperator("=")) {
      ExpressionPtr value = ParseWhole();
      return {at, Set{std::move(target), std::move(value)}};
    }
    parts_ = 0;
    ExpressionPtr filters = IsOperator("|") ? ParseFilters(nullptr) : nullptr;
    Body body = ParseClosedBlock("endset");
    return {at, SetBlock{std::move(target), std::move(filters), std::move(body)}};
  }

  Target ParseTarget(bool with_attribute) {
    Target target;
    target.at = Here();
    const bool parentheses = TakeOperator("(");
    do {
      if (target.unpacks && Current().kind != TokenKind::kName) break;  // a comma at the end
      target.names.push_back(ExpectName("a name to assign to"));
      if (Has(std::initializer_list<std::string_view>{"true", "false", "True", "False", "none", "None", "loop"},
              target.names.back()))
        source_.Fail(target.at, "'{}' cannot be assigned to", target.names.back());
      if (with_attribute && TakeOperator(".")) {
        target.attribute = ExpectName("the name of an attribute");
        if (target.unpacks || IsOperator(","))
          source_.Fail(target.at, "an attribute among several targets is not supported");
        if (target.attribute.starts_with("_")) source_.Fail(target.at, "'{}' cannot be assigned to", target.attribute);
        break;
      }
      target.unpacks = target.unpacks || IsOperator(",");
    } while (TakeOperator(","));
    if (parentheses) Expect(")");
    if (target.attribute.empty()) assigned_.insert(target.names.begin(), target.names.end());
    return target;
  }

  If ParseIf() {
    If result;
    do {
      parts_ = 0;
      ExpressionPtr test = ParseTuple(false);
      Body body = ParseBlock({"elif", "else", "endif"});
      result.branches.emplace_back(std::move(test), std::move(body));
    } while (TakeWord("elif"));
    if (TakeWord("else")) result.otherwise = ParseBlock({"endif"});
    ++at_;
    return result;
  }

  For ParseFor() {
    For result;
    result.target = ParseTarget(false);
    if (!TakeWord("in")) FailExpected("'in'");
    parts_ = 0;
    result.sequence = ParseTuple(false);
    if (TakeWord("if")) result.condition = ParseExpression();
    if (IsWord("recursive")) source_.Fail(Here(), "a recursive loop is not supported");
    ++loops_;
    result.body = ParseBlock({"endfor", "else"});
    --loops_;
    if (TakeWord("else")) result.otherwise = ParseBlock({"endfor"});
    ++at_;
    return result;
  }

  std::unique_ptr<Macro> ParseMacro() {
    auto macro = std::make_unique<Macro>();
    macro->name = ExpectName("the name of a macro");
    assigned_.insert(macro->name);
    Expect("(");
    while (!TakeOperator(")")) {
      if (!macro->parameters.empty()) Expect(",");
      const size_t at = Here();
      macro->parameters.push_back(ExpectName("the name of a parameter"));
      assigned_.insert(macro->parameters.back());
      if (std::count(macro->parameters.begin(), macro->parameters.end(), macro->parameters.back()) > 1)
        source_.Fail(at, "the parameter '{}' is there twice", macro->parameters.back());
      parts_ = 0;
      macro->defaults.push_back(TakeOperator("=") ? ParseExpression() : nullptr);
      if (macro->defaults.back() == nullptr && macro->defaults.size() > 1 && *(macro->defaults.end() - 2) != nullptr)
        source_.Fail(at, "the parameter '{}' has no default, but one before it has", macro->parameters.back());
    }
    macro->signature.parameters.assign(macro->parameters.begin(), macro->parameters.end());
    macro->body = ParseClosedBlock("endmacro");
    return macro;
  }

  // Expressions, from the loosest binding to the tightest.

  ExpressionPtr ParseWhole() {
    parts_ = 0;
    return ParseTuple(true);
  }

  bool EndsTuple() const {
    return Current().kind == TokenKind::kPrintEnd || Current().kind == TokenKind::kBlockEnd || IsOperator(")");
  }

  // One expression, or several with commas: a tuple. In the head of a loop "if" begins its condition.
  ExpressionPtr ParseTuple(bool with_conditional) {
    const Deeper guard(*this);
    const size_t at = Here();
    std::vector<ExpressionPtr> items;
    bool tuple = false;
    do {
      if (tuple && EndsTuple()) break;
      items.push_back(with_conditional ? ParseExpression() : ParseOr());
      tuple = tuple || IsOperator(",");
    } while (TakeOperator(","));
    if (!tuple) return std::move(items.front());
    return Make(at, ListLiteral{std::move(items), true});
  }

  ExpressionPtr ParseExpression() {
    const Deeper guard(*this);
    const size_t at = Here();
    ExpressionPtr value = ParseOr();
    while (TakeWord("if")) {
      ExpressionPtr test = ParseOr();
      ExpressionPtr no = TakeWord("else") ? ParseExpression() : nullptr;
      value = Make(at, Conditional{std::move(test), std::move(value), std::move(no)});
    }
    return value;
  }

  ExpressionPtr ParseOr() {
    const size_t at = Here();
    ExpressionPtr left = ParseAnd();
    while (TakeWord("or")) left = Make(at, Logic{false, std::move(left), ParseAnd()});
    return left;
  }

  ExpressionPtr ParseAnd() {
    const size_t at = Here();
    ExpressionPtr left = ParseNot();
    while (TakeWord("and")) left = Make(at, Logic{true, std::move(left), ParseNot()});
    return left;
  }

  ExpressionPtr ParseNot() {
    const Deeper guard(*this);
    const size_t at = Here();
    if (TakeWord("not")) return Make(at, Negation{ParseNot()});
    return ParseComparison();
  }

  std::optional<Relation> TakeRelation() {
    constexpr std::pair<std::string_view, Relation> kRelations[] = {
        {"==", Relation::kEqual},     {"!=", Relation::kNotEqual}, {"<", Relation::kLess},
        {"<=", Relation::kLessEqual}, {">", Relation::kGreater},   {">=", Relation::kGreaterEqual}};
    for (const auto& [text, relation] : kRelations)
      if (TakeOperator(text)) return relation;
    if (TakeWord("in")) return Relation::kIn;
    if (IsWord("not") && Next().kind == TokenKind::kName && Next().text == "in") {
      at_ += 2;
      return Relation::kNotIn;
    }
    return std::nullopt;
  }

  ExpressionPtr ParseComparison() {
    const size_t at = Here();
    ExpressionPtr first = ParseSum();
    std::vector<std::pair<Relation, ExpressionPtr>> rest;
    while (const auto relation = TakeRelation()) rest.emplace_back(*relation, ParseSum());
    if (rest.empty()) return first;
    return Make(at, Comparison{std::move(first), std::move(rest)});
  }

  ExpressionPtr ParseSum() {
    ExpressionPtr left = ParseConcatenation();
    while (IsOperator("+") || IsOperator("-")) {
      const size_t at = Here();
      const Operator op = Take().text == "+" ? Operator::kAdd : Operator::kSubtract;
      left = Make(at, Arithmetic{op, std::move(left), ParseConcatenation()});
    }
    return left;
  }

  ExpressionPtr ParseConcatenation() {
    const size_t at = Here();
    std::vector<ExpressionPtr> parts;
    do parts.push_back(ParseProduct());
    while (TakeOperator("~"));
    if (parts.size() == 1) return std::move(parts.front());
    return Make(at, Concatenation{std::move(parts)});
  }

  ExpressionPtr ParseProduct() {
    constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
    ExpressionPtr left = ParseUnary(true);
    while (true) {
      const size_t at = Here();
      if (IsOperator("**")) source_.Fail(at, "the operator '**' is not supported");
      const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                       [&](const auto& one) { return IsOperator(one.first); });
      if (found == std::end(kOperators)) return left;
      ++at_;
      left = Make(at, Arithmetic{found->second, std::move(left), ParseUnary(true)});
    }
  }

  ExpressionPtr ParseUnary(bool with_filters) {
    const Deeper guard(*this);
    const size_t at = Here();
    ExpressionPtr value;
    if (IsOperator("-") || IsOperator("+")) {
      const bool minus = Take().text == "-";
      value = Make(at, Sign{minus, ParseUnary(false)});
    } else {
      value = ParsePrimary();
    }
    value = ParsePostfix(std::move(value));
    return with_filters ? ParseFilters(std::move(value)) : std::move(value);
  }

  ExpressionPtr ParsePrimary() {
    const size_t at = Here();
    switch (Current().kind) {
      case TokenKind::kName: return ParseName();
      case TokenKind::kString: {
        std::string text;
        while (Current().kind == TokenKind::kString) text += Take().text;
        return Make(at, Constant{std::make_shared<const Text>(Text{std::move(text)})});
      }
      case TokenKind::kInteger: return Make(at, Constant{Take().integer});
      case TokenKind::kFloat: return Make(at, Constant{Take().number});
      default: break;
    }
    if (TakeOperator("(")) {
      if (TakeOperator(")")) return Make(at, ListLiteral{{}, true});
      ExpressionPtr value = ParseTuple(true);
      Expect(")");
      return value;
    }
    if (TakeOperator("[")) return ParseList(at);
    if (TakeOperator("{")) return ParseDict(at);
    FailExpected("an expression");
  }

  ExpressionPtr ParseName() {
    const size_t at = Here();
    const std::string name = Take().text;
    if (name == "true" || name == "True") return Make(at, Constant{true});
    if (name == "false" || name == "False") return Make(at, Constant{false});
    if (name == "none" || name == "None") return Make(at, Constant{nullptr});
    read_.emplace_back(at, name);
    return Make(at, Name{name});
  }

  ExpressionPtr ParseList(size_t at) {
    std::vector<ExpressionPtr> items;
    while (!TakeOperator("]")) {
      if (!items.empty()) Expect(",");
      if (TakeOperator("]")) break;
      items.push_back(ParseExpression());
    }
    return Make(at, ListLiteral{std::move(items), false});
  }

  ExpressionPtr ParseDict(size_t at) {
    std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
    while (!TakeOperator("}")) {
      if (!entries.empty()) Expect(",");
      if (TakeOperator("}")) break;
      ExpressionPtr key = ParseExpression();
      Expect(":");
      entries.emplace_back(std::move(key), ParseExpression());
    }
    return Make(at, DictLiteral{std::move(entries)});
  }

  ExpressionPtr ParsePostfix(ExpressionPtr value) {
    while (true) {
      if (IsOperator(".")) {
        value = ParseAttribute(std::move(value));
      } else if (IsOperator("[")) {
        value = ParseSubscript(std::move(value));
      } else if (IsOperator("(")) {
        value = ParseCall(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseAttribute(ExpressionPtr object) {
    ++at_;
    const size_t at = Here();
    if (Current().kind == TokenKind::kInteger) {
      const int64_t index = Take().integer;
      return Make(at, ItemOf{std::move(object), Make(at, Constant{index})});
    }
    const std::string name = ExpectName("the name of an attribute");
    const Name* of = std::get_if<Name>(&object->form);
    if (of != nullptr && of->name == "loop" && !Has(kLoopAttributes, name))
      source_.Fail(at, "'loop.{}' is not supported", name);
    return Make(at, AttributeOf{std::move(object), name});
  }

  ExpressionPtr ParseSubscript(ExpressionPtr object) {
    const size_t at = Here();
    ++at_;
    const auto bound = [&]() -> ExpressionPtr {
      return IsOperator(":") || IsOperator("]") ? nullptr : ParseExpression();
    };
    ExpressionPtr first = bound();
    if (!IsOperator(":")) {
      if (first == nullptr) FailExpected("an expression");
      Expect("]");
      return Make(at, ItemOf{std::move(object), std::move(first)});
    }
    ++at_;
    ExpressionPtr end = bound();
    ExpressionPtr step = TakeOperator(":") ? bound() : nullptr;
    Expect("]");
    return Make(at, SliceOf{std::move(object), std::move(first), std::move(end), std::move(step)});
  }

  CallArguments ParseArguments() {
    Expect("(");
    CallArguments arguments;
    while (!TakeOperator(")")) {
      if (!arguments.values.empty()) Expect(",");
      if (TakeOperator(")")) break;
      if (IsOperator("*") || IsOperator("**")) source_.Fail(Here(), "arguments with {} are not supported", Describe());
      const bool keyword =
          Current().kind == TokenKind::kName && Next().kind == TokenKind::kOperator && Next().text == "=";
      if (keyword) {
        arguments.keywords.push_back(Take().text);
        ++at_;
      } else if (!arguments.keywords.empty()) {
        FailExpected("a keyword argument, as those before it");
      }
      arguments.values.push_back(ParseExpression());
    }
    return arguments;
  }

  void CheckArguments(size_t at, std::string_view what, const Builtin& function, const CallArguments& arguments) {
    const std::string mismatch = function.signature.Mismatch(arguments.positional(), arguments.keywords);
    if (!mismatch.empty()) source_.Fail(at, "{} '{}' {}", what, function.name, mismatch);
  }

  ExpressionPtr ParseCall(ExpressionPtr callee) {
    const size_t at = callee->at;
    CallArguments arguments = ParseArguments();
    if (const auto* attribute = std::get_if<AttributeOf>(&callee->form)) {
      const Builtin* of_text = FindTextMethod(attribute->name);
      const Builtin* method = of_text ? of_text : FindMappingMethod(attribute->name);
      if (method == nullptr) source_.Fail(at, "the method '{}' is not supported", attribute->name);
      CheckArguments(at, "the method", *method, arguments);
    } else if (const auto* name = std::get_if<Name>(&callee->form)) {
      called_.emplace_back(at, name->name);
    }
    return Make(at, Call{std::move(callee), std::move(arguments)});
  }

  ExpressionPtr ParseFilters(ExpressionPtr value) {
    while (true) {
      if (TakeOperator("|")) {
        value = ParseFilter(std::move(value));
      } else if (value != nullptr && IsWord("is")) {
        value = ParseTest(std::move(value));
      } else if (value != nullptr && IsOperator("(")) {
        value = ParseCall(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseFilter(ExpressionPtr subject) {
    const size_t at = Here();
    const std::string name = ExpectName("the name of a filter");
    const Builtin* filter = FindFilter(name);
    if (filter == nullptr || IsOperator(".")) source_.Fail(at, "the filter '{}' is not supported", name);
    CallArguments arguments;
    if (IsOperator("(")) arguments = ParseArguments();
    CheckArguments(at, "the filter", *filter, arguments);
    CheckNamed(at, *filter, arguments);
    return Make(at, Filtered{std::move(subject), filter, std::move(arguments)});
  }

  // Of map('upper') and selectattr('role', 'equalto', 'user'): the name is known, and its own arguments fit.
  void CheckNamed(size_t at, const Builtin& filter, const CallArguments& arguments) {
    const auto named = NamedArgument(filter);
    if (!named) return;
    if (arguments.positional() <= named->argument) {
      if (filter.name == "map" && !Has(arguments.keywords, "attribute"))
        source_.Fail(at, "the filter 'map' needs the name of a filter, or attribute=");
      return;
    }
    if (!arguments.keywords.empty())
      source_.Fail(at, "the filter '{}' with a name and keywords is not supported", filter.name);
    const auto* constant = std::get_if<Constant>(&arguments.values[named->argument]->form);
    const Text* name = constant != nullptr ? AsText(constant->value) : nullptr;
    const Builtin* found = name != nullptr ? named->find(name->text) : nullptr;
    if (found == nullptr)
      source_.Fail(arguments.values[named->argument]->at, "the filter '{}' needs a name that is known, as a string",
                   filter.name);
    const std::string mismatch = found->signature.Mismatch(arguments.values.size() - named->argument - 1, {});
    if (!mismatch.empty() || NamedArgument(*found) || (filter.name == "map" && arguments.values.size() > 1))
      source_.Fail(at, "'{}' by the filter '{}' is not supported with these arguments", found->name, filter.name);
  }

  ExpressionPtr ParseTest(ExpressionPtr subject) {
    const size_t is = Here();
    ++at_;
    const bool negated = TakeWord("not");
    const size_t at = Here();
    const std::string name = IsOperator("==") || IsOperator("!=") ? "" : ExpectName("the name of a test");
    const Builtin* test = FindTest(name);
    if (test == nullptr || IsOperator(".")) source_.Fail(at, "the test '{}' is not supported", name);
    CallArguments arguments;
    if (IsOperator("(")) {
      arguments = ParseArguments();
    } else if (BeginsArgumentOfTest()) {
      if (IsWord("is")) source_.Fail(Here(), "tests cannot be chained with 'is'");
      arguments.values.push_back(ParsePostfix(ParsePrimary()));
    }
    CheckArguments(at, "the test", *test, arguments);
    ExpressionPtr result = Make(is, Tested{std::move(subject), test, std::move(arguments)});
    return negated ? Make(is, Negation{std::move(result)}) : std::move(result);
  }

  bool BeginsArgumentOfTest() const {
    switch (Current().kind) {
      case TokenKind::kName: return !IsWord("else") && !IsWord("or") && !IsWord("and");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      default: return IsOperator("[") || IsOperator("{");
    }
  }

  const Source& source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0, parts_ = 0;
  std::set<std::string, std::less<>> assigned_;
  std::vector<std::pair<size_t, std::string>> read_, called_;  // names, and where
};

}  // namespace

Body Parse(const Source& source) { return Parser(source).Run(); }

}  // namespace shiftrt::jinja
