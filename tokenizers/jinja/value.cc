// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/value.h"

namespace shiftrt::jinja {

const Text* AsText(const Value& value) {
  const auto* pointer = std::get_if<std::shared_ptr<const Text>>(&value);
  return pointer ? pointer->get() : nullptr;
}

const Sequence* AsSequence(const Value& value) {
  const auto* pointer = std::get_if<std::shared_ptr<const Sequence>>(&value);
  return pointer ? pointer->get() : nullptr;
}

const Mapping* AsMapping(const Value& value) {
  const auto* pointer = std::get_if<std::shared_ptr<const Mapping>>(&value);
  return pointer ? pointer->get() : nullptr;
}

std::string_view TypeName(const Value& value) {
  if (const Sequence* sequence = AsSequence(value)) {
    constexpr std::string_view kNames[] = {"list", "tuple", "range", "view of a dict", "generator"};
    return kNames[static_cast<int>(sequence->kind)];
  }
  constexpr std::string_view kNames[] = {"undefined value", "None",   "bool",     "int",   "float", "str", "", "dict",
                                         "namespace",       "method", "function", "macro", "loop"};
  static_assert(std::size(kNames) == std::variant_size_v<Value::variant>);
  return kNames[value.index()];
}

bool Truth(const Value& value) {
  if (Is<Undefined>(value) || Is<std::nullptr_t>(value)) return false;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer != 0;
  if (const auto* number = std::get_if<double>(&value)) return *number != 0;
  if (const Text* text = AsText(value)) return !text->text.empty();
  if (const Sequence* sequence = AsSequence(value))
    return sequence->kind == Sequence::Kind::kGenerator || !sequence->items.empty();
  if (const Mapping* mapping = AsMapping(value)) return !mapping->entries.empty();
  return true;
}

}  // namespace shiftrt::jinja
