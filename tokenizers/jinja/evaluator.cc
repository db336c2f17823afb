// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/evaluator.h"

#include <deque>

namespace shiftrt::jinja {

// The names of one scope. Reading looks outwards; assigning changes the innermost scope only.
struct Frame {
  const Frame* outer = nullptr;
  std::vector<std::pair<std::string, Value>> names;
};

// A macro with the scope in which it was defined. It cannot leave that scope: nothing outside can hold it.
struct Closure {
  const Macro* macro;
  const Frame* scope;
};

namespace {

constexpr int kMaxDepth = 400;  // limit of nested evaluations

enum class Flow { kNext, kBreak, kContinue };

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '\'': escaped += "&#39;"; break;
      case '"': escaped += "&#34;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

class Evaluator {
 public:
  explicit Evaluator(Run& run) : run_(run) {}

  std::string Render(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
    Frame outermost{nullptr, std::move(variables)};
    frame_ = &outermost;
    return Capture(body, outermost);
  }

 private:
  // One more nested evaluation.
  class Deeper {
   public:
    explicit Deeper(Run& run) : run_(run) {
      if (++run_.depth > kMaxDepth) run_.Fail("evaluations are nested more than {} levels deep", kMaxDepth);
    }
    ~Deeper() { --run_.depth; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Run& run_;
  };

  // Statements.

  // Runs `body` with `frame` as the innermost scope.
  Flow ExecuteIn(Frame& frame, const Body& body) {
    Frame* const before = std::exchange(frame_, &frame);
    const Flow flow = Execute(body);
    frame_ = before;
    return flow;
  }

  std::string Capture(const Body& body, Frame& frame) {
    std::string text;
    std::string* const before = std::exchange(out_, &text);
    ExecuteIn(frame, body);
    out_ = before;
    return text;
  }

  Flow Execute(const Body& body) {
    const Deeper guard(run_);
    for (const Statement& statement : body) {
      run_.at = statement.at;
      run_.Charge(1);
      const Flow flow = std::visit([&](const auto& form) { return Execute(form); }, statement.form);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  void Write(std::string_view text) {
    run_.ChargeText(text.size());
    run_.ChargeMemory(text.size());
    out_->append(text);
  }

  Flow Execute(const Data& data) {
    Write(data.text);
    return Flow::kNext;
  }

  Flow Execute(const Print& print) {
    Write(run_.Str(Evaluate(*print.value)));
    return Flow::kNext;
  }

  Flow Execute(const Set& set) {
    Assign(set.target, Evaluate(*set.value));
    return Flow::kNext;
  }

  Flow Execute(const SetBlock& set) {
    Frame inner{frame_, {}};
    Value value = run_.MakeText(Capture(set.body, inner));
    if (set.filters != nullptr) {
      const Value before = std::exchange(block_, std::move(value));
      value = Evaluate(*set.filters);
      block_ = before;
    }
    Assign(set.target, std::move(value));
    return Flow::kNext;
  }

  Flow Execute(const If& statement) {
    for (const auto& [test, body] : statement.branches)
      if (Truth(Evaluate(*test))) return Execute(body);
    return Execute(statement.otherwise);
  }

  Flow Execute(const For& loop) {
    Loop state{Elements(loop)};
    const int64_t size = std::ssize(state.sequence->items);
    for (; state.index < size; ++state.index) {
      Frame inner{frame_, {{"loop", &state}}};
      Bind(inner, loop.target, state.sequence->items[state.index]);
      if (ExecuteIn(inner, loop.body) == Flow::kBreak) break;
    }
    if (size > 0) return Flow::kNext;
    Frame inner{frame_, {}};
    return ExecuteIn(inner, loop.otherwise);
  }

  Flow Execute(const std::unique_ptr<Macro>& macro) {
    closures_.push_back({macro.get(), frame_});
    Store(*frame_, macro->name, &closures_.back());
    return Flow::kNext;
  }

  Flow Execute(const Scope& scope) {
    Frame inner{frame_, {}};
    return ExecuteIn(inner, scope.body);
  }

  Flow Execute(const Break&) { return Flow::kBreak; }
  Flow Execute(const Continue&) { return Flow::kContinue; }

  // The elements that a loop visits: those that meet its condition.
  std::shared_ptr<const Sequence> Elements(const For& loop) {
    std::shared_ptr<const Sequence> all = run_.Iterate(Evaluate(*loop.sequence));
    if (loop.condition == nullptr) return all;
    std::vector<Value> chosen;
    for (const Value& item : all->items) {
      Frame inner{frame_, {}};
      Bind(inner, loop.target, item);
      Frame* const before = std::exchange(frame_, &inner);
      if (Truth(Evaluate(*loop.condition))) chosen.push_back(item);
      frame_ = before;
    }
    return std::get<std::shared_ptr<const Sequence>>(run_.MakeSequence(std::move(chosen)));
  }

  // Names.

  void Store(Frame& frame, const std::string& name, Value value) {
    run_.Charge(1 + frame.names.size() / 16);
    for (auto& [known, held] : frame.names)
      if (known == name) {
        held = std::move(value);
        return;
      }
    frame.names.emplace_back(name, std::move(value));
  }

  Value Load(const std::string& name) {
    for (const Frame* frame = frame_; frame != nullptr; frame = frame->outer) {
      run_.Charge(1 + frame->names.size() / 16);
      for (const auto& [known, value] : frame->names)
        if (known == name) return value;
    }
    if (const Builtin* function = FindFunction(name)) return function;
    return run_.MakeUndefined("'{}' is undefined", name);
  }

  void Bind(Frame& frame, const Target& target, const Value& value) {
    if (!target.unpacks) return Store(frame, target.names.front(), value);
    run_.at = target.at;
    const auto parts = run_.Iterate(value);
    if (parts->items.size() != target.names.size())
      run_.Fail("{} names for {} values", target.names.size(), parts->items.size());
    for (size_t i = 0; i < target.names.size(); ++i) Store(frame, target.names[i], parts->items[i]);
  }

  void Assign(const Target& target, Value value) {
    if (target.attribute.empty()) return Bind(*frame_, target, value);
    const Value holder = Load(target.names.front());
    run_.at = target.at;
    const auto* space = std::get_if<std::shared_ptr<Namespace>>(&holder);
    if (space == nullptr)
      run_.Fail("'{}' is not a namespace, and only those have attributes to set", target.names.front());
    run_.CheckData(value);
    Put((*space)->attributes, {target.attribute}, std::move(value));
  }

  void Put(Mapping& mapping, const Key& key, Value value) {
    run_.ChargeText(key.text.size());
    run_.ChargeMemory(key.text.size() + sizeof(mapping.entries[0]));
    if (Value* held = run_.Find(mapping, key)) {
      *held = std::move(value);
      return;
    }
    mapping.entries.emplace_back(key, std::move(value));
  }

  // Expressions.

  Value Evaluate(const Expression& expression) {
    const Deeper guard(run_);
    run_.Charge(1);
    run_.at = expression.at;
    return std::visit([&](const auto& form) { return Evaluate(form, expression.at); }, expression.form);
  }

  // The value of a part of an expression at `at`. Afterwards the position for errors is `at` again.
  Value Part(const ExpressionPtr& part, size_t at) {
    Value value = Evaluate(*part);
    run_.at = at;
    return value;
  }

  std::vector<Value> Parts(const std::vector<ExpressionPtr>& parts, size_t at) {
    std::vector<Value> values;
    values.reserve(parts.size());
    for (const ExpressionPtr& part : parts) values.push_back(Part(part, at));
    return values;
  }

  Value Evaluate(const Constant& constant, size_t) { return constant.value; }
  Value Evaluate(const Name& name, size_t) { return Load(name.name); }

  Value Evaluate(const ListLiteral& list, size_t at) {
    return run_.MakeSequence(Parts(list.items, at), list.tuple ? Sequence::Kind::kTuple : Sequence::Kind::kList);
  }

  Value Evaluate(const DictLiteral& dict, size_t at) {
    Mapping mapping;
    for (const auto& [key, value] : dict.entries) {
      const Value name = Part(key, at);
      if (!Is<int64_t>(name)) run_.ExpectText(name, "a key of a dict");
      Put(mapping, *Run::AsKey(name), Part(value, at));
    }
    return run_.MakeMapping(std::move(mapping.entries));
  }

  Value Evaluate(const Negation& negation, size_t at) { return !Truth(Part(negation.operand, at)); }

  Value Evaluate(const Sign& sign, size_t at) {
    const Value value = Part(sign.operand, at);
    if (const auto* number = std::get_if<double>(&value)) return sign.minus ? -*number : *number;
    const int64_t integer = run_.ExpectInteger(value, sign.minus ? "-" : "+");
    return sign.minus ? -integer : integer;
  }

  Value Evaluate(const Logic& logic, size_t at) {
    Value left = Part(logic.left, at);
    return Truth(left) == logic.conjunction ? Part(logic.right, at) : left;
  }

  Value Evaluate(const Concatenation& concatenation, size_t at) {
    std::string text;
    for (const ExpressionPtr& part : concatenation.parts) text += run_.Str(Part(part, at));
    return run_.MakeText(std::move(text));
  }

  Value Evaluate(const Conditional& conditional, size_t at) {
    if (Truth(Part(conditional.test, at))) return Part(conditional.yes, at);
    if (conditional.no != nullptr) return Part(conditional.no, at);
    return run_.MakeUndefined("the condition is false, and there is no else");
  }

  Value Evaluate(const AttributeOf& attribute, size_t at) {
    return run_.Attribute(Part(attribute.object, at), attribute.name);
  }

  Value Evaluate(const ItemOf& item, size_t at) {
    const Value object = Part(item.object, at);
    return run_.Item(object, Part(item.key, at));
  }

  Value Evaluate(const SliceOf& slice, size_t at) {
    const auto bound = [&](const ExpressionPtr& part) { return part != nullptr ? Part(part, at) : Value(nullptr); };
    const Value object = Part(slice.object, at);
    const Value begin = bound(slice.begin), end = bound(slice.end), step = bound(slice.step);
    return run_.Slice(object, begin, end, step);
  }

  Value Evaluate(const Comparison& comparison, size_t at) {
    Value left = Part(comparison.first, at);
    for (const auto& [relation, operand] : comparison.rest) {
      Value right = Part(operand, at);
      if (!Holds(relation, left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool Holds(Relation relation, const Value& left, const Value& right) {
    switch (relation) {
      case Relation::kEqual: return run_.Equal(left, right);
      case Relation::kNotEqual: return !run_.Equal(left, right);
      case Relation::kLess: return run_.Less(left, right);
      case Relation::kLessEqual: return run_.Less(left, right) || run_.Equal(left, right);
      case Relation::kGreater: return run_.Less(right, left);
      case Relation::kGreaterEqual: return run_.Less(right, left) || run_.Equal(left, right);
      case Relation::kIn: return run_.Contains(right, left);
      case Relation::kNotIn: return !run_.Contains(right, left);
    }
    __builtin_unreachable();
  }

  Value Evaluate(const Arithmetic& arithmetic, size_t at) {
    const Value left = Part(arithmetic.left, at), right = Part(arithmetic.right, at);
    if (arithmetic.op == Operator::kAdd) {
      if (AsText(left) && AsText(right)) return AddTexts(*AsText(left), *AsText(right));
      if (AsSequence(left) && AsSequence(right)) return AddSequences(*AsSequence(left), *AsSequence(right));
    }
    if (arithmetic.op == Operator::kModulo && AsText(left)) run_.Fail("to format a text with '%' is not supported");
    for (const Value* value : {&left, &right}) {
      if (const auto* undefined = std::get_if<Undefined>(value)) run_.Fail("{}", *undefined->what);
      if (!Is<bool>(*value) && !Is<int64_t>(*value) && !Is<double>(*value))
        run_.Fail("a {} and a {} cannot be combined", TypeName(left), TypeName(right));
    }
    if (Is<double>(left) || Is<double>(right) || arithmetic.op == Operator::kDivide)
      return OnFloats(arithmetic.op, Number(left), Number(right));
    return OnIntegers(arithmetic.op, run_.ExpectInteger(left, ""), run_.ExpectInteger(right, ""));
  }

  Value AddTexts(const Text& left, const Text& right) {
    const bool safe = left.safe || right.safe;
    run_.ChargeText(left.text.size() + right.text.size());
    run_.ChargeMemory(left.text.size() + right.text.size());
    const auto part = [&](const Text& text) { return safe && !text.safe ? EscapeHtml(text.text) : text.text; };
    return run_.MakeText(part(left) + part(right), safe);
  }

  Value AddSequences(const Sequence& left, const Sequence& right) {
    if (left.kind != right.kind || left.kind > Sequence::Kind::kTuple)
      run_.Fail("only two lists or two tuples can be added");
    run_.Charge(left.items.size() + right.items.size());
    std::vector<Value> items = left.items;
    items.insert(items.end(), right.items.begin(), right.items.end());
    return run_.MakeSequence(std::move(items), left.kind);
  }

  double Number(const Value& value) const {
    const auto* number = std::get_if<double>(&value);
    return number != nullptr ? *number : static_cast<double>(run_.ExpectInteger(value, "a number"));
  }

  Value OnFloats(Operator op, double left, double right) {
    switch (op) {
      case Operator::kAdd: return left + right;
      case Operator::kSubtract: return left - right;
      case Operator::kMultiply: return left * right;
      case Operator::kDivide:
        if (right == 0) run_.Fail("division by zero");
        return left / right;
      default: run_.Fail("// and % of a float are not supported");
    }
  }

  Value OnIntegers(Operator op, int64_t left, int64_t right) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
      case Operator::kAdd: overflow = __builtin_add_overflow(left, right, &result); break;
      case Operator::kSubtract: overflow = __builtin_sub_overflow(left, right, &result); break;
      case Operator::kMultiply: overflow = __builtin_mul_overflow(left, right, &result); break;
      default: {
        if (right == 0) run_.Fail("division by zero");
        overflow = left == INT64_MIN && right == -1;
        if (overflow) break;
        const int64_t remainder = left % right;
        const bool rounds_up = remainder != 0 && (remainder < 0) != (right < 0);  // Python rounds down
        result = op == Operator::kModulo ? remainder + (rounds_up ? right : 0) : left / right - (rounds_up ? 1 : 0);
      }
    }
    if (overflow) run_.Fail("an integer beyond 64 bits");
    return result;
  }

  // Calls.

  Value Evaluate(const Filtered& filtered, size_t at) {
    const Value subject = filtered.subject != nullptr ? Part(filtered.subject, at) : block_;
    return Invoke(*filtered.filter, subject, filtered.arguments, at);
  }

  Value Evaluate(const Tested& tested, size_t at) {
    const Value subject = Part(tested.subject, at);
    return Invoke(*tested.test, subject, tested.arguments, at);
  }

  Value Evaluate(const Call& call, size_t at) {
    const Value callee = Part(call.callee, at);
    if (const auto* method = std::get_if<std::shared_ptr<const Method>>(&callee))
      return Invoke(*(*method)->function, (*method)->self, call.arguments, at);
    if (const auto* closure = std::get_if<const Closure*>(&callee)) return CallMacro(**closure, call.arguments, at);
    if (const auto* function = std::get_if<const Builtin*>(&callee)) {
      if (IsNamespaceFunction(**function)) return MakeNamespace(call.arguments, at);
      return Invoke(**function, Undefined{}, call.arguments, at);
    }
    if (const auto* undefined = std::get_if<Undefined>(&callee)) run_.Fail("{} and cannot be called", *undefined->what);
    run_.Fail("a {} cannot be called", TypeName(callee));
  }

  // The arguments in the order of the signature.
  std::vector<std::optional<Value>> Arrange(std::string_view name, const Signature& signature,
                                            const CallArguments& arguments, size_t at) {
    run_.Charge(1 + signature.parameters.size() * (1 + arguments.keywords.size()) / 4);
    const std::string mismatch = signature.Mismatch(arguments.positional(), arguments.keywords);
    if (!mismatch.empty()) run_.Fail("'{}' {}", name, mismatch);
    std::vector<Value> values = Parts(arguments.values, at);
    std::vector<std::optional<Value>> arranged;
    for (const int place : signature.Places(arguments.positional(), arguments.keywords))
      arranged.push_back(place < 0 ? std::nullopt : std::optional(std::move(values[place])));
    return arranged;
  }

  Value Invoke(const Builtin& function, const Value& subject, const CallArguments& arguments, size_t at) {
    return function.call(run_, subject, Arrange(function.name, function.signature, arguments, at));
  }

  Value CallMacro(const Closure& closure, const CallArguments& arguments, size_t at) {
    const Macro& macro = *closure.macro;
    const auto given = Arrange(macro.name, macro.signature, arguments, at);
    Frame inner{closure.scope, {}};
    Frame* const before = std::exchange(frame_, &inner);  // a default may use the parameters before it
    for (size_t i = 0; i < given.size(); ++i) {
      Value value = given[i] ? *given[i] : run_.MakeUndefined("the parameter '{}' was not given", macro.parameters[i]);
      if (!given[i] && macro.defaults[i] != nullptr) value = Part(macro.defaults[i], at);
      Store(inner, macro.parameters[i], std::move(value));
    }
    std::string text = Capture(macro.body, inner);
    frame_ = before;
    run_.at = at;
    return run_.MakeText(std::move(text));
  }

  Value MakeNamespace(const CallArguments& arguments, size_t at) {
    if (arguments.positional() > 0) run_.Fail("namespace: takes keywords only");
    auto space = std::make_shared<Namespace>();
    for (size_t i = 0; i < arguments.values.size(); ++i) {
      const Value value = Part(arguments.values[i], at);
      run_.CheckData(value);
      Put(space->attributes, {std::string(arguments.keywords[i])}, value);
    }
    return space;
  }

  Run& run_;
  Frame* frame_ = nullptr;
  std::string* out_ = nullptr;
  Value block_;                   // the text of {% set x | filter %}
  std::deque<Closure> closures_;  // values point to them
};

}  // namespace

std::string Render(const Body& body, std::vector<std::pair<std::string, Value>> variables, Run& run) {
  return Evaluator(run).Render(body, std::move(variables));
}

}  // namespace shiftrt::jinja
