// SPDX-License-Identifier: Apache-2.0
// One rendering of a template: its limits, and the operations on values that they bound. Everything throws Error at the
// place `at` of the template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizers/jinja/source.h"
#include "tokenizers/jinja/value.h"

namespace shiftrt::jinja {

// Templates come with a model from anywhere. A real one needs some thousand units of work for a message. A unit is one
// operation, one element, or 16 bytes of text that are read, compared or written. What is made is counted and never
// given back: the texts, lists and mappings of one rendering take less than kMaxMemory together.
inline constexpr int64_t kMaxWork = int64_t{1} << 23;
inline constexpr int64_t kMaxMemory = int64_t{1} << 28;  // bytes
inline constexpr int kMaxNesting = 64;                   // limit of nested lists and mappings
inline constexpr int kMaxRange = 100000;                 // elements, as in Jinja's sandbox

struct Run {
  const Source& source;
  int64_t now;  // seconds since 1970, for strftime_now
  size_t at = 0;
  int64_t work = 0;
  int64_t memory = 0;  // bytes
  int depth = 0;       // number of nested evaluations

  // Both throw beyond the limits, and are called before the work is done.
  void Charge(size_t units);
  void ChargeText(size_t bytes) { Charge(1 + bytes / 16); }
  void ChargeMemory(size_t bytes);
  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    source.Fail(at, format, std::forward<Args>(args)...);
  }

  Value MakeText(std::string text, bool safe = false);
  Value MakeSequence(std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::kList);
  Value MakeMapping(std::vector<std::pair<Key, Value>> entries);
  // Throws unless `value` is data: a namespace, a function or a loop cannot be an element of anything.
  void CheckData(const Value& value) const;
  template <typename... Args>
  Value MakeUndefined(fmt::format_string<Args...> format, Args&&... args) const {
    return Undefined{std::make_shared<const std::string>(fmt::format(format, std::forward<Args>(args)...))};
  }
  Value FromJson(const nlohmann::ordered_json& json);

  // The text of a str. Throws for another type, and for a text marked safe, whose methods would keep the mark.
  const std::string& ExpectText(const Value& value, std::string_view what) const;
  int64_t ExpectInteger(const Value& value, std::string_view what) const;
  // str(value), as it is printed.
  std::string Str(const Value& value);

  // The elements that a loop over `value` visits. A generator is used up.
  std::shared_ptr<const Sequence> Iterate(const Value& value);
  int64_t Size(const Value& value);  // len()
  bool Equal(const Value& a, const Value& b);
  bool Less(const Value& a, const Value& b);  // throws for types without an order
  bool Contains(const Value& container, const Value& element);

  // The key that a value is; no value if it is none that a dict has here. The value that a key is.
  static std::optional<Key> AsKey(const Value& value);
  Value FromKey(const Key& key);
  // The value of a key; null if there is none.
  const Value* Find(const Mapping& mapping, const Key& key);
  Value* Find(Mapping& mapping, const Key& key) { return const_cast<Value*>(Find(std::as_const(mapping), key)); }

  // value.name and value[key], as Jinja's environment finds them: of an attribute and a key of one name, the first
  // finds the attribute, the second the key. Undefined where there is neither.
  Value Attribute(const Value& value, std::string_view name);
  Value Item(const Value& value, const Value& key);
  // value[begin:end:step]; None stands for a bound that is not given.
  Value Slice(const Value& value, const Value& begin, const Value& end, const Value& step);

 private:
  void AppendStr(const Value& value, std::string& out);
  // Appends repr(value), which differs from str(value) for texts.
  void AppendRepr(const Value& value, std::string& out);
  std::optional<Value> PythonAttribute(const Value& value, std::string_view name);
  Value LoopAttribute(const Loop& loop, std::string_view name) const;
};

// The arguments of json.dumps.
struct JsonStyle {
  std::optional<std::string> indent;  // one level
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
std::string DumpJson(Run& run, const Value& value, const JsonStyle& style);

}  // namespace shiftrt::jinja
