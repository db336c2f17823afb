// SPDX-License-Identifier: Apache-2.0
// The values of a template, which are Python's. Lists, tuples and mappings are immutable and hold data only, so that no
// value can contain itself.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shiftrt::jinja {

struct Text;
struct Sequence;
struct Mapping;
struct Namespace;
struct Method;
struct Builtin;
struct Closure;
struct Loop;

// The value of a name or a key that does not exist: false, empty, and an error for most uses.
struct Undefined {
  std::shared_ptr<const std::string> what;  // "'x' is undefined"
};

struct Value : std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Mapping>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Method>, const Builtin*, const Closure*, const Loop*> {
  using variant::variant;
};

template <typename Type>
bool Is(const Value& value) {
  return std::holds_alternative<Type>(value);
}

struct Text {
  std::string text;
  bool safe = false;  // by the filter `safe`: `+` then escapes the other operand for HTML
};

struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kRange,
    kView,       // result of dict.keys(), values() and items()
    kGenerator,  // result of map, select and their like: always true, without a length, and empty when it is read again
  };
  Kind kind;
  std::vector<Value> items;
  int depth = 1;  // levels of nested sequences and mappings
  mutable bool spent = false;
};

// A key of a dict. An integer is never equal to the text of its digits.
struct Key {
  std::string text;      // for an integer its decimal digits
  bool integer = false;  // as Python counts: true and 1.0 are the key 1

  bool operator==(const Key&) const = default;
};

struct Mapping {
  std::vector<std::pair<Key, Value>> entries;  // in the order of insertion
  int depth = 1;
};

// The only value that changes: the attributes of namespace(), whose keys are texts.
struct Namespace {
  Mapping attributes;
};

// A method of a value, not yet called.
struct Method {
  Value self;
  const Builtin* function;
};

// `loop` in the body of a loop.
struct Loop {
  std::shared_ptr<const Sequence> sequence;
  int64_t index = 0;  // from 0
};

// The name of the Python type, for messages.
std::string_view TypeName(const Value& value);
// bool() of Python.
bool Truth(const Value& value);
// Null unless `value` is of that type.
const Text* AsText(const Value& value);
const Sequence* AsSequence(const Value& value);
const Mapping* AsMapping(const Value& value);

}  // namespace shiftrt::jinja
