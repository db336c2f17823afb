// SPDX-License-Identifier: Apache-2.0
// The filters, each as jinja2/filters.py has it; `tojson` as transformers overrides it.
#include <algorithm>
#include <cmath>

#include "runtime/parse.h"
#include "runtime/printable.h"
#include "tokenizers/jinja/builtins.h"
#include "tokenizers/jinja/python_text.h"

namespace shiftrt::jinja {

namespace {

// The subject as a str.
std::string Subject(Run& run, const Value& subject, std::string_view filter) {
  if (!AsText(subject)) return run.Str(subject);
  const std::string& text = run.ExpectText(subject, filter);
  run.ChargeText(text.size());
  run.ChargeMemory(text.size());
  return text;
}

bool Flag(const std::optional<Value>& argument) { return argument && Truth(*argument); }

Value Trim(Run& run, const Value& subject, Arguments arguments) {
  const std::string text = Subject(run, subject, "trim");
  std::optional<std::string_view> of;
  if (arguments[0] && !Is<std::nullptr_t>(*arguments[0])) of = run.ExpectText(*arguments[0], "trim");
  run.ChargeText(text.size() * (of ? of->size() : 1));
  return run.MakeText(std::string(Strip(text, Side::kBoth, of)));
}

// `title` begins a word after white space, "-" and opening brackets.
std::string TitleOfFilter(std::string_view text) {
  std::string result = Lower(text);
  bool begins = true;
  for (char& c : result) {
    if (begins && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    begins = std::string_view(" \t\n\r\f\v\x1C\x1D\x1E\x1F-({[<").find(c) != std::string_view::npos;
  }
  return result;
}

template <std::string (*change)(std::string_view)>
Value ChangeCase(Run& run, const Value& subject, Arguments) {
  const std::string text = Subject(run, subject, "a change of case");
  run.ChargeText(4 * text.size());
  if (!HasSimpleCase(text)) run.Fail("the case of letters that are not ASCII is not supported");
  return run.MakeText(change(text));
}

Value Replace(Run& run, const Value& subject, Arguments arguments) {
  const std::string text = Subject(run, subject, "replace");
  const std::string& from = run.ExpectText(*arguments[0], "replace");
  const std::string& to = run.ExpectText(*arguments[1], "replace");
  int64_t left = arguments[2] && !Is<std::nullptr_t>(*arguments[2]) ? run.ExpectInteger(*arguments[2], "replace") : -1;
  if (from.empty()) run.Fail("replace: the text to replace is empty");
  run.ChargeText(text.size() + from.size());
  const Finder finder(from);
  std::string result;
  size_t at = 0;
  for (size_t next = finder.First(text); next != text.npos && left != 0; next = finder.First(text, at), --left) {
    run.ChargeText(to.size());
    run.ChargeMemory(next - at + to.size());
    result.append(text, at, next - at).append(to);
    at = next + from.size();
  }
  return run.MakeText(result.append(text, at));
}

Value LengthOf(Run& run, const Value& subject, Arguments) { return run.Size(subject); }

Value ToString(Run& run, const Value& subject, Arguments) {
  return AsText(subject) ? subject : run.MakeText(run.Str(subject));
}

Value Safe(Run& run, const Value& subject, Arguments) { return run.MakeText(run.Str(subject), true); }

Value ToList(Run& run, const Value& subject, Arguments) { return run.MakeSequence(run.Iterate(subject)->items); }

Value Items(Run& run, const Value& subject, Arguments arguments) {
  if (!AsMapping(subject) && !Is<Undefined>(subject)) run.Fail("items: expected a dict, found {}", TypeName(subject));
  std::vector<Value> items;
  if (AsMapping(subject)) items = AsSequence(FindMappingMethod("items")->call(run, subject, arguments))->items;
  return run.MakeSequence(std::move(items), Sequence::Kind::kGenerator);
}

Value Default(Run&, const Value& subject, Arguments arguments) {
  const bool replaced = Is<Undefined>(subject) || (Flag(arguments[1]) && !Truth(subject));
  if (!replaced) return subject;
  return arguments[0] ? *arguments[0] : Value(std::make_shared<const Text>());
}

// An attribute by its path "a.b.0", as Jinja looks it up: by key first.
Value AttributeByPath(Run& run, Value value, const Value& path, const std::optional<Value>& fallback) {
  if (!AsText(path)) return run.Item(value, path);
  const std::string& parts = run.ExpectText(path, "an attribute");
  run.ChargeText(parts.size());
  Split(parts, ".", -1, [&](std::string_view part) {
    int64_t index = 0;
    const bool number = ParseNumber(part, &index) && part[0] != '-';
    value = run.Item(value, number ? Value(index) : run.MakeText(std::string(part)));
    if (fallback && !Is<std::nullptr_t>(*fallback) && Is<Undefined>(value)) value = *fallback;
  });
  return value;
}

Value Join(Run& run, const Value& subject, Arguments arguments) {
  const std::string separator = arguments[0] ? run.Str(*arguments[0]) : "";
  std::string text;
  bool first = true;
  const auto sequence = run.Iterate(subject);
  for (const Value& item : sequence->items) {
    run.ChargeText(separator.size());
    run.ChargeMemory(separator.size());
    if (!std::exchange(first, false)) text += separator;
    text += run.Str(arguments[1] ? AttributeByPath(run, item, *arguments[1], {}) : item);
  }
  return run.MakeText(std::move(text));
}

Value First(Run& run, const Value& subject, Arguments) {
  const auto sequence = run.Iterate(subject);
  return sequence->items.empty() ? run.MakeUndefined("an empty sequence has no first item") : sequence->items.front();
}

Value Last(Run& run, const Value& subject, Arguments) {
  const Sequence* given = AsSequence(subject);
  if (given != nullptr && given->kind == Sequence::Kind::kGenerator)
    run.Fail("last: a generator has no last item; make it a list with the filter 'list'");
  const auto sequence = run.Iterate(subject);
  return sequence->items.empty() ? run.MakeUndefined("an empty sequence has no last item") : sequence->items.back();
}

// The arguments from `begin` on, as many as `signature` has.
std::vector<std::optional<Value>> Rest(Arguments arguments, size_t begin, const Signature& signature) {
  std::vector<std::optional<Value>> rest(arguments.begin() + static_cast<ptrdiff_t>(begin), arguments.end());
  rest.resize(signature.parameters.size());
  return rest;
}

// map, select and their like make nothing of a subject that is false, whatever its type.
std::shared_ptr<const Sequence> IterateIfTrue(Run& run, const Value& subject) {
  return run.Iterate(Truth(subject) ? subject : Value(Undefined{}));
}

Value Map(Run& run, const Value& subject, Arguments arguments) {
  std::vector<Value> results;
  const Builtin* filter = arguments[0] ? FindFilter(run.ExpectText(*arguments[0], "map")) : nullptr;
  const auto sequence = IterateIfTrue(run, subject);
  for (const Value& item : sequence->items)
    results.push_back(filter ? filter->call(run, item, Rest({}, 0, filter->signature))
                             : AttributeByPath(run, item, *arguments[1], arguments[2]));
  return run.MakeSequence(std::move(results), Sequence::Kind::kGenerator);
}

// select, reject, selectattr and rejectattr: the items of which a test, or the value itself, is `wanted`.
template <bool by_attribute, bool wanted>
Value Choose(Run& run, const Value& subject, Arguments arguments) {
  constexpr size_t kTest = by_attribute ? 1 : 0;
  const Builtin* test = arguments[kTest] ? FindTest(run.ExpectText(*arguments[kTest], "select")) : nullptr;
  const auto rest = test ? Rest(arguments, kTest + 1, test->signature) : std::vector<std::optional<Value>>();
  std::vector<Value> chosen;
  const auto sequence = IterateIfTrue(run, subject);
  for (const Value& item : sequence->items) {
    const Value value = by_attribute ? AttributeByPath(run, item, *arguments[0], {}) : item;
    if (Truth(test ? test->call(run, value, rest) : value) == wanted) chosen.push_back(item);
  }
  return run.MakeSequence(std::move(chosen), Sequence::Kind::kGenerator);
}

// The value by which `value` is sorted: a text in lower case, unless case counts.
Value SortKey(Run& run, const char* filter, const Value& value, bool case_sensitive) {
  const Text* text = AsText(value);
  if (text == nullptr || case_sensitive) return value;
  run.ChargeText(4 * text->text.size());
  if (!HasSimpleCase(text->text)) run.Fail("{}: letters that are not ASCII are not supported", filter);
  return run.MakeText(Lower(text->text));
}

template <typename Key>
Value Sorted(Run& run, std::vector<Value> items, bool backwards, const Key& key) {
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return backwards ? run.Less(key(b), key(a)) : run.Less(key(a), key(b));
  });
  return run.MakeSequence(std::move(items));
}

Value Sort(Run& run, const Value& subject, Arguments arguments) {
  const bool case_sensitive = Flag(arguments[1]);
  const bool by_attribute = arguments[2] && !Is<std::nullptr_t>(*arguments[2]);
  return Sorted(run, run.Iterate(subject)->items, Flag(arguments[0]), [&](const Value& item) {
    return SortKey(run, "sort", by_attribute ? AttributeByPath(run, item, *arguments[2], {}) : item, case_sensitive);
  });
}

Value DictSort(Run& run, const Value& subject, Arguments arguments) {
  if (const auto* undefined = std::get_if<Undefined>(&subject)) run.Fail("dictsort: {}", *undefined->what);
  if (!AsMapping(subject)) run.Fail("dictsort: expected a dict, found {}", TypeName(subject));
  const bool case_sensitive = Flag(arguments[0]), backwards = Flag(arguments[2]);
  const std::string by = arguments[1] ? run.ExpectText(*arguments[1], "dictsort") : "key";
  if (by != "key" && by != "value") run.Fail("dictsort: sorts by \"key\" or \"value\", not by \"{}\"", Printable(by));
  return Sorted(run, AsSequence(FindMappingMethod("items")->call(run, subject, {}))->items, backwards,
                [&](const Value& item) {
                  return SortKey(run, "dictsort", AsSequence(item)->items[by == "key" ? 0 : 1], case_sensitive);
                });
}

Value ToJson(Run& run, const Value& subject, Arguments arguments) {
  if (Flag(arguments[0])) run.Fail("tojson: ensure_ascii=true is not supported");
  JsonStyle style;
  if (arguments[1] && !Is<std::nullptr_t>(*arguments[1])) {
    if (AsText(*arguments[1])) {
      style.indent = run.ExpectText(*arguments[1], "tojson");
    } else {
      const int64_t width = run.ExpectInteger(*arguments[1], "tojson");
      if (width > 100) run.Fail("tojson: an indent of {} is not supported", width);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (arguments[2] && !Is<std::nullptr_t>(*arguments[2])) {
    const auto separators = run.Iterate(*arguments[2]);
    if (separators->items.size() != 2) run.Fail("tojson: separators are two texts");
    style.item_separator = run.ExpectText(separators->items[0], "tojson");
    style.key_separator = run.ExpectText(separators->items[1], "tojson");
  }
  style.sort_keys = Flag(arguments[3]);
  return run.MakeText(DumpJson(run, subject, style));
}

Value Indent(Run& run, const Value& subject, Arguments arguments) {
  std::string prefix(4, ' ');
  if (arguments[0] && AsText(*arguments[0])) {
    prefix = run.ExpectText(*arguments[0], "indent");
  } else if (arguments[0]) {
    prefix.assign(static_cast<size_t>(std::clamp<int64_t>(run.ExpectInteger(*arguments[0], "indent"), 0, 1000)), ' ');
  }
  const std::string& given = run.ExpectText(subject, "indent");
  run.ChargeText(given.size());
  run.ChargeMemory(given.size());
  const std::string text = given + "\n";
  std::string result;
  bool first = true;
  run.ChargeText(2 * text.size());
  SplitLines(text, [&](std::string_view line) {
    run.ChargeText(prefix.size());
    run.ChargeMemory(1 + prefix.size() + line.size());
    if (!first) result += '\n';
    const bool indents = first ? Flag(arguments[1]) : !line.empty() || Flag(arguments[2]);
    if (indents) result += prefix;
    result += line;
    first = false;
  });
  return run.MakeText(std::move(result));
}

Value ToInt(Run& run, const Value& subject, Arguments arguments) {
  Value fallback = arguments[0] ? *arguments[0] : Value(int64_t{0});
  double number = 0;
  if (const Text* text = AsText(subject)) {
    run.ChargeText(text->text.size());
    std::string_view digits = Strip(text->text, Side::kBoth);
    if (digits.find('_') != digits.npos) run.Fail("int: a number with '_' is not supported");
    if (digits.starts_with('+')) digits.remove_prefix(1);
    int64_t integer = 0;
    if (ParseNumber(digits, &integer)) return integer;
    if (!ParseNumber(digits, &number)) return fallback;
  } else if (const auto* value = std::get_if<double>(&subject)) {
    number = *value;
  } else if (Is<int64_t>(subject) || Is<bool>(subject)) {
    return run.ExpectInteger(subject, "int");
  } else if (const auto* undefined = std::get_if<Undefined>(&subject)) {
    run.Fail("int: {}", *undefined->what);
  } else {
    return fallback;
  }
  if (!(std::fabs(number) < 9e18)) run.Fail("int: {} is beyond 64 bits", Format(number));
  return static_cast<int64_t>(number);
}

const Builtin kFilters[] = {
    {"capitalize", {}, &ChangeCase<&Capitalize>},
    {"count", {}, &LengthOf},
    {"d", {{"default_value", "boolean"}, 0}, &Default},
    {"default", {{"default_value", "boolean"}, 0}, &Default},
    {"dictsort", {{"case_sensitive", "by", "reverse"}, 0}, &DictSort},
    {"first", {}, &First},
    {"indent", {{"width", "first", "blank"}, 0}, &Indent},
    {"int", {{"default"}, 0}, &ToInt},
    {"items", {}, &Items},
    {"join", {{"d", "attribute"}, 0}, &Join},
    {"last", {}, &Last},
    {"length", {}, &LengthOf},
    {"list", {}, &ToList},
    {"lower", {}, &ChangeCase<&Lower>},
    {"map", {{"", "attribute", "default"}, 0}, &Map},
    {"reject", {{"", ""}, 0}, &Choose<false, false>},
    {"rejectattr", {{"", "", ""}, 1}, &Choose<true, false>},
    {"replace", {{"old", "new", "count"}, 2}, &Replace},
    {"safe", {}, &Safe},
    {"select", {{"", ""}, 0}, &Choose<false, true>},
    {"selectattr", {{"", "", ""}, 1}, &Choose<true, true>},
    {"sort", {{"reverse", "case_sensitive", "attribute"}, 0}, &Sort},
    {"string", {}, &ToString},
    {"title", {}, &ChangeCase<&TitleOfFilter>},
    {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}, 0}, &ToJson},
    {"trim", {{"chars"}, 0}, &Trim},
    {"upper", {}, &ChangeCase<&Upper>},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const auto found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                  [&](const Builtin& filter) { return filter.name == name; });
  return found == std::end(kFilters) ? nullptr : &*found;
}

std::optional<NamedCallable> NamedArgument(const Builtin& filter) {
  if (filter.name == "map") return NamedCallable{0, &FindFilter};
  if (filter.name == "select" || filter.name == "reject") return NamedCallable{0, &FindTest};
  if (filter.name == "selectattr" || filter.name == "rejectattr") return NamedCallable{1, &FindTest};
  return std::nullopt;
}

}  // namespace shiftrt::jinja
