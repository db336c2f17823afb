// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja/run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <compare>
#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "tokenizers/jinja/builtins.h"
#include "tokenizers/jinja/python_text.h"
#include "tokenizers/utf8.h"

namespace shiftrt::jinja {

namespace {

// Attributes of Python's types besides the methods in builtins.h. Jinja would return them, so neither a key of that
// name nor "undefined" would be right, and access to them is refused.
constexpr std::string_view kTextAttributes =
    " casefold center count encode expandtabs format format_map index isalnum isalpha isascii isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans partition removeprefix "
    "removesuffix rindex rjust rpartition rsplit splitlines swapcase translate zfill ";
constexpr std::string_view kListAttributes = " append clear copy count extend index insert pop remove reverse sort ";
constexpr std::string_view kTupleAttributes = " count index ";
constexpr std::string_view kMappingAttributes = " clear copy fromkeys pop popitem setdefault update ";
constexpr std::string_view kViewAttributes = " isdisjoint mapping ";
constexpr std::string_view kRangeAttributes = " count index start stop step ";
constexpr std::string_view kGeneratorAttributes =
    " close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw ";
constexpr std::string_view kNumberAttributes =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator "
    "real "
    "to_bytes ";

bool Names(std::string_view attributes, std::string_view name) {
  return attributes.find(fmt::format(" {} ", name)) != attributes.npos;
}

// True for values whose attributes templates do not need.
bool IsOpaque(const Value& value) {
  return Is<const Builtin*>(value) || Is<const Closure*>(value) || Is<const Loop*>(value);
}

// The value of an integer or a bool, which Python treats alike.
std::optional<int64_t> AsInteger(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> AsNumber(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto integer = AsInteger(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// The indices that Python's slice picks among `size` elements.
std::vector<int64_t> SlicePlaces(int64_t size, std::optional<int64_t> begin, std::optional<int64_t> end, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> place, int64_t fallback) {
    if (!place) return fallback;
    if (*place >= size) return high;  // before adding, which must not wrap
    return std::clamp(*place < 0 ? std::max(*place, -size - 1) + size : *place, low, high);
  };
  const int64_t first = bound(begin, step > 0 ? low : high), last = bound(end, step > 0 ? high : low);
  std::vector<int64_t> places;
  if (step > 0) {
    for (int64_t at = first; at < last; at = step < last - at ? at + step : last) places.push_back(at);
  } else {
    for (int64_t at = first; at > last; at = step > last - at ? at + step : last) places.push_back(at);
  }
  return places;
}

int DepthOf(const Value& value) {
  if (const Sequence* sequence = AsSequence(value)) return sequence->depth;
  if (const Mapping* mapping = AsMapping(value)) return mapping->depth;
  return 0;
}

}  // namespace

void Run::Charge(size_t units) {
  work += static_cast<int64_t>(std::min<size_t>(units, kMaxWork + 1));
  if (work > kMaxWork) Fail("the template takes too much work or memory");
}

void Run::ChargeMemory(size_t bytes) {
  memory += static_cast<int64_t>(std::min<size_t>(bytes, kMaxMemory + 1));
  if (memory > kMaxMemory) Fail("the template takes too much work or memory");
}

Value Run::MakeText(std::string text, bool safe) {
  ChargeText(text.size());
  ChargeMemory(sizeof(Text) + 16 + text.size());
  return std::make_shared<const Text>(Text{std::move(text), safe});
}

void Run::CheckData(const Value& value) const {
  const size_t index = value.index();
  constexpr size_t kFirstThatIsNone = 8;  // namespace, method, function, macro, loop
  static_assert(
      std::is_same_v<std::variant_alternative_t<kFirstThatIsNone, Value::variant>, std::shared_ptr<Namespace>>);
  if (index >= kFirstThatIsNone) Fail("a {} cannot be an element or an attribute here", TypeName(value));
}

Value Run::MakeSequence(std::vector<Value> items, Sequence::Kind kind) {
  Charge(1 + items.size());
  ChargeMemory(sizeof(Sequence) + 16 + items.size() * sizeof(Value));
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) {
    CheckData(item);
    sequence->depth = std::max(sequence->depth, 1 + DepthOf(item));
  }
  if (sequence->depth > kMaxNesting) Fail("lists are nested more than {} levels deep", kMaxNesting);
  sequence->kind = kind;
  sequence->items = std::move(items);
  return std::shared_ptr<const Sequence>(std::move(sequence));
}

Value Run::MakeMapping(std::vector<std::pair<Key, Value>> entries) {
  Charge(1 + entries.size());
  ChargeMemory(sizeof(Mapping) + 16 + entries.size() * sizeof(entries[0]));
  auto mapping = std::make_shared<Mapping>();
  for (const auto& [key, value] : entries) {
    CheckData(value);
    mapping->depth = std::max(mapping->depth, 1 + DepthOf(value));
  }
  if (mapping->depth > kMaxNesting) Fail("dicts are nested more than {} levels deep", kMaxNesting);
  mapping->entries = std::move(entries);
  return std::shared_ptr<const Mapping>(std::move(mapping));
}

Value Run::FromJson(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null: return nullptr;
    case Type::boolean: return json.get<bool>();
    case Type::number_integer: return json.get<int64_t>();
    case Type::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) Fail("the integer {} is beyond 64 bits", json.dump());
      return json.get<int64_t>();
    case Type::number_float: return json.get<double>();
    case Type::string: return MakeText(json.get<std::string>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(FromJson(item));
      return MakeSequence(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Key, Value>> entries;
      for (const auto& [key, value] : json.items()) entries.emplace_back(Key{key}, FromJson(value));
      return MakeMapping(std::move(entries));
    }
    default: Fail("a value that is not JSON");
  }
}

const std::string& Run::ExpectText(const Value& value, std::string_view what) const {
  if (const auto* undefined = std::get_if<Undefined>(&value)) Fail("{}: {}", what, *undefined->what);
  const Text* text = AsText(value);
  if (text == nullptr) Fail("{}: expected a str, found {}", what, TypeName(value));
  if (text->safe) Fail("{} of a value marked by the filter 'safe' is not supported", what);
  return text->text;
}

int64_t Run::ExpectInteger(const Value& value, std::string_view what) const {
  if (const auto* undefined = std::get_if<Undefined>(&value)) Fail("{}: {}", what, *undefined->what);
  const auto integer = AsInteger(value);
  if (!integer) Fail("{}: expected an int, found {}", what, TypeName(value));
  return *integer;
}

void Run::AppendStr(const Value& value, std::string& out) {
  if (const Text* text = AsText(value)) {
    ChargeText(text->text.size());
    ChargeMemory(text->text.size());
    out += text->text;
  } else if (!Is<Undefined>(value)) {
    AppendRepr(value, out);
  }
}

void Run::AppendRepr(const Value& value, std::string& out) {
  Charge(1);
  const auto list = [&](std::string_view open, std::string_view close, const auto& parts, auto&& append) {
    out += open;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) out += ", ";
      append(parts[i]);
    }
    out += close;
  };
  const auto item = [&](const Value& part) { AppendRepr(part, out); };
  const Sequence* const sequence = AsSequence(value);
  if (Is<std::nullptr_t>(value)) {
    out += "None";
  } else if (Is<Undefined>(value)) {
    out += "Undefined";
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    out += *flag ? "True" : "False";
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    out += std::to_string(*integer);
  } else if (const auto* number = std::get_if<double>(&value)) {
    out += Format(*number);
  } else if (const Text* text = AsText(value)) {
    ChargeText(4 * text->text.size());
    ChargeMemory(text->text.size());
    if (text->safe) Fail("the repr of a value marked by the filter 'safe' is not supported");
    out += Quote(text->text);
  } else if (sequence != nullptr && sequence->kind == Sequence::Kind::kList) {
    list("[", "]", sequence->items, item);
  } else if (sequence != nullptr && sequence->kind == Sequence::Kind::kTuple) {
    list("(", sequence->items.size() == 1 ? ",)" : ")", sequence->items, item);
  } else if (const Mapping* mapping = AsMapping(value)) {
    list("{", "}", mapping->entries, [&](const auto& entry) {
      const auto& [key, integer] = entry.first;
      ChargeText(4 * key.size());
      ChargeMemory(key.size());
      out += (integer ? key : Quote(key)) + ": ";
      AppendRepr(entry.second, out);
    });
  } else {
    Fail("a {} cannot be written as text here; make it a list with the filter 'list'", TypeName(value));
  }
}

std::string Run::Str(const Value& value) {
  std::string out;
  AppendStr(value, out);
  return out;
}

std::shared_ptr<const Sequence> Run::Iterate(const Value& value) {
  std::vector<Value> items;
  if (const auto* sequence = std::get_if<std::shared_ptr<const Sequence>>(&value)) {
    Charge((*sequence)->items.size());
    const bool generator = (*sequence)->kind == Sequence::Kind::kGenerator;
    if (!generator || !std::exchange((*sequence)->spent, true)) return *sequence;
  } else if (const Text* text = AsText(value)) {
    for (std::string_view left = text->text; !left.empty(); left.remove_prefix(FirstCharacter(left).length))
      items.push_back(MakeText(std::string(CharacterAt(left, 0))));
  } else if (const Mapping* mapping = AsMapping(value)) {
    for (const auto& [key, element] : mapping->entries) items.push_back(FromKey(key));
  } else if (!Is<Undefined>(value)) {
    Fail("a {} has no elements to loop over", TypeName(value));
  }
  return std::get<std::shared_ptr<const Sequence>>(MakeSequence(std::move(items)));
}

int64_t Run::Size(const Value& value) {
  if (Is<Undefined>(value)) return 0;
  if (const Text* text = AsText(value)) {
    ChargeText(text->text.size());
    return Length(text->text);
  }
  if (const Mapping* mapping = AsMapping(value)) return std::ssize(mapping->entries);
  const Sequence* sequence = AsSequence(value);
  if (sequence == nullptr || sequence->kind == Sequence::Kind::kGenerator) Fail("a {} has no length", TypeName(value));
  return std::ssize(sequence->items);
}

bool Run::Equal(const Value& a, const Value& b) {
  Charge(1);
  if (const auto x = AsInteger(a), y = AsInteger(b); x && y) return *x == *y;
  if (const auto x = AsNumber(a), y = AsNumber(b); x && y) return *x == *y;
  if (a.index() != b.index()) return false;
  if (const Text* text = AsText(a)) {
    if (text->text.size() != AsText(b)->text.size()) return false;
    ChargeText(text->text.size());
    return text->text == AsText(b)->text;
  }
  if (const Sequence* x = AsSequence(a)) {
    const Sequence* y = AsSequence(b);
    const bool comparable = x->kind != Sequence::Kind::kView && x->kind != Sequence::Kind::kGenerator;
    if (!comparable) Fail("a {} cannot be compared", TypeName(a));
    return x->kind == y->kind && x->items.size() == y->items.size() &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(),
                      [&](const Value& p, const Value& q) { return Equal(p, q); });
  }
  if (const Mapping* x = AsMapping(a)) {
    const Mapping* y = AsMapping(b);
    return x->entries.size() == y->entries.size() &&
           std::all_of(x->entries.begin(), x->entries.end(), [&](const auto& entry) {
             const Value* other = Find(*y, entry.first);
             return other != nullptr && Equal(entry.second, *other);
           });
  }
  if (Is<Undefined>(a) || Is<std::nullptr_t>(a)) return true;
  Fail("a {} cannot be compared", TypeName(a));
}

bool Run::Less(const Value& a, const Value& b) {
  Charge(1);
  if (const auto x = AsInteger(a), y = AsInteger(b); x && y) return *x < *y;
  if (const auto x = AsNumber(a), y = AsNumber(b); x && y) return *x < *y;
  const Text *const x = AsText(a), *const y = AsText(b);
  if (x != nullptr && y != nullptr) {
    ChargeText(std::min(x->text.size(), y->text.size()));
    return x->text < y->text;  // bytes of UTF-8 have the order of the code points
  }
  for (const Value* value : {&a, &b})
    if (const auto* undefined = std::get_if<Undefined>(value)) Fail("{}", *undefined->what);
  Fail("a {} and a {} have no order here", TypeName(a), TypeName(b));
}

std::optional<Key> Run::AsKey(const Value& value) {
  if (const Text* text = AsText(value)) return Key{text->text};
  if (const auto integer = AsInteger(value)) return Key{std::to_string(*integer), /*integer=*/true};
  const auto* number = std::get_if<double>(&value);
  constexpr double kExact = 0x1p53;
  if (number != nullptr && std::abs(*number) <= kExact && std::trunc(*number) == *number)
    return Key{std::to_string(static_cast<int64_t>(*number)), /*integer=*/true};
  return std::nullopt;
}

Value Run::FromKey(const Key& key) {
  if (!key.integer) return MakeText(key.text);
  int64_t integer = 0;
  std::from_chars(key.text.data(), key.text.data() + key.text.size(), integer);
  return integer;
}

const Value* Run::Find(const Mapping& mapping, const Key& key) {
  const auto& entries = mapping.entries;
  Charge(1 + entries.size());
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    if (entry.first.text.size() != key.text.size()) return false;
    Charge(key.text.size() / 16);
    return entry.first == key;
  });
  return found == entries.end() ? nullptr : &found->second;
}

bool Run::Contains(const Value& container, const Value& element) {
  if (const Text* text = AsText(container)) {
    const Text* part = AsText(element);
    if (part == nullptr) Fail("'in' a str needs a str, found {}", TypeName(element));
    ChargeText(text->text.size() + part->text.size());
    return Finder(part->text).First(text->text) != std::string::npos;
  }
  if (const Mapping* mapping = AsMapping(container)) {
    if (AsSequence(element) || AsMapping(element)) Fail("a {} cannot be a key", TypeName(element));
    const std::optional<Key> key = AsKey(element);
    return key && Find(*mapping, *key) != nullptr;
  }
  if (!AsSequence(container) && !Is<Undefined>(container)) Fail("a {} does not contain anything", TypeName(container));
  const auto items = Iterate(container);
  return std::any_of(items->items.begin(), items->items.end(), [&](const Value& item) { return Equal(item, element); });
}

Value Run::LoopAttribute(const Loop& loop, std::string_view name) const {
  const std::vector<Value>& items = loop.sequence->items;
  const int64_t size = std::ssize(items), at = loop.index;
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return size - at;
  if (name == "revindex0") return size - at - 1;
  if (name == "length") return size;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == size;
  if (name == "previtem") return at > 0 ? items[at - 1] : MakeUndefined("there is no previous item");
  if (name == "nextitem") return at + 1 < size ? items[at + 1] : MakeUndefined("there is no next item");
  Fail("'loop.{}' is not supported", name);
}

// getattr() on a value that is neither undefined nor a namespace; no value if Python has no such attribute.
std::optional<Value> Run::PythonAttribute(const Value& value, std::string_view name) {
  const bool text = AsText(value) != nullptr, mapping = AsMapping(value) != nullptr;
  if (name.starts_with("__")) Fail("the attribute '{}' is not supported", name);
  if (text || mapping) {
    if (const Builtin* method = text ? FindTextMethod(name) : FindMappingMethod(name))
      return Value(std::make_shared<const Method>(Method{value, method}));
  }
  std::string_view others;
  if (text) others = kTextAttributes;
  if (mapping) others = kMappingAttributes;
  if (AsNumber(value)) others = kNumberAttributes;
  if (const Sequence* sequence = AsSequence(value)) {
    constexpr std::string_view kOfKinds[] = {kListAttributes, kTupleAttributes, kRangeAttributes, kViewAttributes,
                                             kGeneratorAttributes};
    others = kOfKinds[static_cast<int>(sequence->kind)];
  }
  if (Names(others, name)) Fail("the attribute '{}' of a {} is not supported", name, TypeName(value));
  return std::nullopt;
}

Value Run::Attribute(const Value& value, std::string_view name) {
  Charge(1);
  if (const auto* undefined = std::get_if<Undefined>(&value)) Fail("{} (looking for its '{}')", *undefined->what, name);
  if (const auto* holder = std::get_if<std::shared_ptr<Namespace>>(&value)) {
    if (const Value* found = Find((*holder)->attributes, Key{std::string(name)})) return *found;
    return MakeUndefined("the namespace has no attribute '{}'", Printable(name));
  }
  if (const auto* loop = std::get_if<const Loop*>(&value)) return LoopAttribute(**loop, name);
  if (const auto attribute = PythonAttribute(value, name)) return *attribute;
  if (const Mapping* mapping = AsMapping(value)) {
    if (const Value* found = Find(*mapping, Key{std::string(name)})) return *found;
  } else if (IsOpaque(value)) {
    Fail("the attribute '{}' of a {} is not supported", name, TypeName(value));
  }
  return MakeUndefined("a {} has no attribute '{}'", TypeName(value), Printable(name));
}

Value Run::Item(const Value& value, const Value& key) {
  Charge(1);
  if (const auto* undefined = std::get_if<Undefined>(&value)) Fail("{} (looking for an element)", *undefined->what);
  const Text* const name = AsText(key);
  if (name != nullptr) ChargeText(name->text.size());
  if (Is<std::shared_ptr<Namespace>>(value) && name != nullptr) return Attribute(value, name->text);
  if (const Mapping* mapping = AsMapping(value)) {
    const std::optional<Key> found_by = AsKey(key);
    if (const Value* found = found_by ? Find(*mapping, *found_by) : nullptr) return *found;
  }
  if (name != nullptr) {
    if (auto attribute = PythonAttribute(value, name->text)) return *attribute;
  }
  if (const auto integer = AsInteger(key)) {
    const auto at = [&](int64_t size) { return *integer < 0 ? *integer + size : *integer; };
    const Sequence* sequence = AsSequence(value);
    if (sequence != nullptr && sequence->kind <= Sequence::Kind::kRange) {
      const int64_t size = std::ssize(sequence->items), place = at(size);
      if (place >= 0 && place < size) return sequence->items[place];
    }
    if (const Text* text = AsText(value)) {
      ChargeText(2 * text->text.size());
      ExpectText(value, "an element");
      const int64_t size = Length(text->text), place = at(size);
      if (place >= 0 && place < size) return MakeText(std::string(CharacterAt(text->text, place)));
    }
  }
  if (IsOpaque(value)) Fail("a {} has no elements", TypeName(value));
  return MakeUndefined("a {} has no element {}", TypeName(value),
                       name != nullptr ? fmt::format("'{}'", Printable(name->text)) : Printable(Str(key)));
}

Value Run::Slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const auto bound = [&](const Value& place) -> std::optional<int64_t> {
    if (Is<std::nullptr_t>(place)) return std::nullopt;
    return ExpectInteger(place, "a slice");
  };
  const int64_t stride = bound(step).value_or(1);
  if (stride == 0) Fail("the step of a slice is 0");
  const Sequence* sequence = AsSequence(value);
  if (sequence != nullptr && sequence->kind <= Sequence::Kind::kTuple) {
    std::vector<Value> items;
    for (const int64_t at : SlicePlaces(std::ssize(sequence->items), bound(begin), bound(end), stride))
      items.push_back(sequence->items[at]);
    return MakeSequence(std::move(items), sequence->kind);
  }
  const std::string& text = ExpectText(value, "a slice");
  Charge(1 + text.size());
  ChargeMemory(text.size());
  const std::vector<std::string_view> characters = Characters(text);
  std::string part;
  for (const int64_t at : SlicePlaces(std::ssize(characters), bound(begin), bound(end), stride)) part += characters[at];
  return MakeText(std::move(part));
}

}  // namespace shiftrt::jinja
