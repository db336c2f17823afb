// SPDX-License-Identifier: Apache-2.0
// Signatures, functions, methods and tests; the filters are in filters.cc.
#include "tokenizers/jinja/builtins.h"

#include <algorithm>
#include <ctime>

#include "runtime/printable.h"
#include "tokenizers/jinja/python_text.h"

namespace shiftrt::jinja {

std::string Signature::Mismatch(size_t positional, std::span<const std::string> keywords) const {
  if (positional > parameters.size())
    return fmt::format("takes at most {} arguments, found {}", parameters.size(), positional);
  std::vector<bool> given(parameters.size());
  std::fill_n(given.begin(), positional, true);
  for (const std::string& keyword : keywords) {
    const auto found = std::find(parameters.begin(), parameters.end(), keyword);
    if (keyword.empty() || found == parameters.end()) return fmt::format("has no argument '{}' here", keyword);
    if (given[found - parameters.begin()]) return fmt::format("takes '{}' once", keyword);
    given[found - parameters.begin()] = true;
  }
  for (size_t i = 0; i < required; ++i)
    if (!given[i])
      return fmt::format("needs its argument {}",
                         parameters[i].empty() ? std::to_string(i + 1) : fmt::format("'{}'", parameters[i]));
  return "";
}

std::vector<int> Signature::Places(size_t positional, std::span<const std::string> keywords) const {
  std::vector<int> places(parameters.size(), -1);
  for (size_t i = 0; i < positional; ++i) places[i] = static_cast<int>(i);
  for (size_t k = 0; k < keywords.size(); ++k) {
    const auto found = std::find(parameters.begin(), parameters.end(), keywords[k]);
    places[found - parameters.begin()] = static_cast<int>(positional + k);
  }
  return places;
}

namespace {

const Builtin* Find(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Builtin& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

// Functions.

Value MakeRange(Run& run, const Value&, Arguments arguments) {
  const auto argument = [&](size_t i) { return run.ExpectInteger(*arguments[i], "range"); };
  const int64_t first = argument(0);
  const int64_t begin = arguments[1] ? first : 0, end = arguments[1] ? argument(1) : first;
  const int64_t step = arguments[2] ? argument(2) : 1;
  if (step == 0) run.Fail("range: the step is 0");
  std::vector<Value> items;
  for (int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (items.size() == kMaxRange) run.Fail("range: more than {} elements", kMaxRange);
    items.push_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return run.MakeSequence(std::move(items), Sequence::Kind::kRange);
}

Value RaiseException(Run& run, const Value&, Arguments arguments) {
  run.Fail("the template refuses: {}", Printable(run.Str(*arguments[0])));
}

Value StrftimeNow(Run& run, const Value&, Arguments arguments) {
  const std::string& format = run.ExpectText(*arguments[0], "strftime_now");
  // The directives that mean the same in C and Python. The others depend on a time zone or on the platform.
  constexpr std::string_view kDirectives = "aAbBdHIjmMpSUwWyYcxXeGuV%";
  for (size_t at = format.find('%'); at != format.npos; at = format.find('%', at + 2))
    if (at + 1 == format.size() || kDirectives.find(format[at + 1]) == kDirectives.npos)
      run.Fail("strftime_now: the directive '{}' is not supported", Printable(format.substr(at, 2)));
  if (format.empty() || format.find('\0') != format.npos) return run.MakeText("");
  const std::time_t time = run.now;
  std::tm local{};
  ::localtime_r(&time, &local);
  const size_t size = format.size() * 64;  // the longest directive writes some 30 bytes
  run.ChargeText(size);
  run.ChargeMemory(size);
  std::string text(size, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
  return run.MakeText(std::move(text));
}

Value NamespaceIsMadeByTheEvaluator(Run& run, const Value&, Arguments) { run.Fail("namespace: takes keywords only"); }

const Builtin kFunctions[] = {
    {"namespace", {}, &NamespaceIsMadeByTheEvaluator},
    {"raise_exception", {{"message"}, 1}, &RaiseException},
    {"range", {{"", "", ""}, 1}, &MakeRange},
    {"strftime_now", {{"format"}, 1}, &StrftimeNow},
};

// Methods of a str. `self` is a text without the mark of `safe`.

const std::string& Self(Run& run, const Value& self) { return run.ExpectText(self, "a method"); }

template <Side side>
Value StripMethod(Run& run, const Value& self, Arguments arguments) {
  std::optional<std::string_view> of;
  if (arguments[0] && !Is<std::nullptr_t>(*arguments[0])) of = run.ExpectText(*arguments[0], "strip");
  const std::string& text = Self(run, self);
  run.ChargeText(text.size() * (of ? of->size() : 1));
  return run.MakeText(std::string(Strip(text, side, of)));
}

Value SplitMethod(Run& run, const Value& self, Arguments arguments) {
  const std::string& text = Self(run, self);
  const int64_t most = arguments[1] ? run.ExpectInteger(*arguments[1], "split") : -1;
  const bool at_space = !arguments[0] || Is<std::nullptr_t>(*arguments[0]);
  std::vector<Value> parts;
  const auto add = [&](std::string_view part) { parts.push_back(run.MakeText(std::string(part))); };
  if (at_space) {
    run.ChargeText(2 * text.size());
    SplitAtSpace(text, most, add);
  } else {
    const std::string& separator = run.ExpectText(*arguments[0], "split");
    if (separator.empty()) run.Fail("split: the separator is empty");
    run.ChargeText(text.size() + separator.size());
    Split(text, separator, most, add);
  }
  return run.MakeSequence(std::move(parts));
}

Value StartsWith(Run& run, const Value& self, Arguments arguments) {
  const std::string& part = run.ExpectText(*arguments[0], "startswith");
  run.ChargeText(part.size());
  return Self(run, self).starts_with(part);
}
Value EndsWith(Run& run, const Value& self, Arguments arguments) {
  const std::string& part = run.ExpectText(*arguments[0], "endswith");
  run.ChargeText(part.size());
  return Self(run, self).ends_with(part);
}

template <bool from_right>
Value FindMethod(Run& run, const Value& self, Arguments arguments) {
  const std::string& text = Self(run, self);
  const std::string& part = run.ExpectText(*arguments[0], "find");
  run.ChargeText(text.size() + part.size());
  const Finder finder(part);
  const size_t at = from_right ? finder.Last(text) : finder.First(text);
  return at == text.npos ? -1 : Length(std::string_view(text).substr(0, at));
}

Value JoinMethod(Run& run, const Value& self, Arguments arguments) {
  const std::string& separator = Self(run, self);
  std::string text;
  bool first = true;
  const auto sequence = run.Iterate(*arguments[0]);
  for (const Value& item : sequence->items) {
    const std::string& part = run.ExpectText(item, "join");
    run.ChargeText(separator.size() + part.size());
    run.ChargeMemory(separator.size() + part.size());
    if (!std::exchange(first, false)) text += separator;
    text += part;
  }
  return run.MakeText(std::move(text));
}

// Makes a filter of the method with the same name; it converts its subject to a str.
template <const char* name>
Value AsFilter(Run& run, const Value& self, Arguments arguments) {
  return FindFilter(name)->call(run, self, arguments);
}
constexpr char kReplace[] = "replace", kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize";

Value TitleMethod(Run& run, const Value& self, Arguments) {
  const std::string& text = Self(run, self);
  run.ChargeText(4 * text.size());
  if (!HasSimpleCase(text)) run.Fail("title: letters that are not ASCII are not supported");
  return run.MakeText(Title(text));
}

const Builtin kTextMethods[] = {
    {"capitalize", {}, &AsFilter<kCapitalize>},
    {"endswith", {{""}, 1}, &EndsWith},
    {"find", {{""}, 1}, &FindMethod<false>},
    {"join", {{""}, 1}, &JoinMethod},
    {"lower", {}, &AsFilter<kLower>},
    {"lstrip", {{""}, 0}, &StripMethod<Side::kLeft>},
    {"replace", {{"", "", ""}, 2}, &AsFilter<kReplace>},
    {"rfind", {{""}, 1}, &FindMethod<true>},
    {"rstrip", {{""}, 0}, &StripMethod<Side::kRight>},
    {"split", {{"sep", "maxsplit"}, 0}, &SplitMethod},
    {"startswith", {{""}, 1}, &StartsWith},
    {"strip", {{""}, 0}, &StripMethod<Side::kBoth>},
    {"title", {}, &TitleMethod},
    {"upper", {}, &AsFilter<kUpper>},
};

// Methods of a dict.

Value GetMethod(Run& run, const Value& self, Arguments arguments) {
  const Mapping& mapping = *AsMapping(self);
  const std::optional<Key> key = Run::AsKey(*arguments[0]);
  if (const Value* found = key ? run.Find(mapping, *key) : nullptr) return *found;
  return arguments[1] ? *arguments[1] : Value(nullptr);
}

Value ItemsMethod(Run& run, const Value& self, Arguments) {
  std::vector<Value> items;
  for (const auto& [key, value] : AsMapping(self)->entries)
    items.push_back(run.MakeSequence({run.FromKey(key), value}, Sequence::Kind::kTuple));
  return run.MakeSequence(std::move(items), Sequence::Kind::kView);
}

Value KeysMethod(Run& run, const Value& self, Arguments) {
  return run.MakeSequence(run.Iterate(self)->items, Sequence::Kind::kView);
}

Value ValuesMethod(Run& run, const Value& self, Arguments) {
  std::vector<Value> values;
  for (const auto& [key, value] : AsMapping(self)->entries) values.push_back(value);
  return run.MakeSequence(std::move(values), Sequence::Kind::kView);
}

const Builtin kMappingMethods[] = {
    {"get", {{"", ""}, 1}, &GetMethod},
    {"items", {}, &ItemsMethod},
    {"keys", {}, &KeysMethod},
    {"values", {}, &ValuesMethod},
};

// Tests.

template <typename... Types>
Value IsOneOf(Run&, const Value& subject, Arguments) {
  return (Is<Types>(subject) || ...);
}
using Null = std::nullptr_t;
using TextPointer = std::shared_ptr<const Text>;
using MappingPointer = std::shared_ptr<const Mapping>;

template <bool wanted>
Value IsBool(Run&, const Value& subject, Arguments) {
  const auto* flag = std::get_if<bool>(&subject);
  return flag != nullptr && *flag == wanted;
}

Value IsDefined(Run&, const Value& subject, Arguments) { return !Is<Undefined>(subject); }

// True for values with elements. A sequence also has a length and can be indexed.
Value IsIterable(Run&, const Value& subject, Arguments) {
  return AsText(subject) || AsSequence(subject) || AsMapping(subject) || Is<Undefined>(subject);
}
Value IsSequence(Run&, const Value& subject, Arguments) {
  const Sequence* sequence = AsSequence(subject);
  return AsText(subject) || AsMapping(subject) || Is<Undefined>(subject) ||
         (sequence && sequence->kind <= Sequence::Kind::kRange);
}

template <bool wanted>
Value EqualTo(Run& run, const Value& subject, Arguments arguments) {
  return run.Equal(subject, *arguments[0]) == wanted;
}
Value IsIn(Run& run, const Value& subject, Arguments arguments) { return run.Contains(*arguments[0], subject); }

template <int64_t remainder>
Value IsParity(Run& run, const Value& subject, Arguments) {
  return std::abs(run.ExpectInteger(subject, "a test of parity") % 2) == remainder;
}

const Builtin kTests[] = {
    {"!=", {{""}, 1}, &EqualTo<false>},
    {"==", {{""}, 1}, &EqualTo<true>},
    {"boolean", {}, &IsOneOf<bool>},
    {"defined", {}, &IsDefined},
    {"eq", {{""}, 1}, &EqualTo<true>},
    {"equalto", {{""}, 1}, &EqualTo<true>},
    {"even", {}, &IsParity<0>},
    {"false", {}, &IsBool<false>},
    {"float", {}, &IsOneOf<double>},
    {"in", {{""}, 1}, &IsIn},
    {"integer", {}, &IsOneOf<int64_t>},
    {"iterable", {}, &IsIterable},
    {"mapping", {}, &IsOneOf<MappingPointer>},
    {"ne", {{""}, 1}, &EqualTo<false>},
    {"none", {}, &IsOneOf<Null>},
    {"number", {}, &IsOneOf<bool, int64_t, double>},
    {"odd", {}, &IsParity<1>},
    {"sequence", {}, &IsSequence},
    {"string", {}, &IsOneOf<TextPointer>},
    {"true", {}, &IsBool<true>},
    {"undefined", {}, &IsOneOf<Undefined>},
};

}  // namespace

const Builtin* FindTest(std::string_view name) { return Find(kTests, name); }
const Builtin* FindFunction(std::string_view name) { return Find(kFunctions, name); }
const Builtin* FindTextMethod(std::string_view name) { return Find(kTextMethods, name); }
const Builtin* FindMappingMethod(std::string_view name) { return Find(kMappingMethods, name); }

bool IsNamespaceFunction(const Builtin& function) { return function.call == &NamespaceIsMadeByTheEvaluator; }

}  // namespace shiftrt::jinja
