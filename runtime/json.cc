// SPDX-License-Identifier: Apache-2.0
#include "runtime/json.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

constexpr size_t kMaxLevels = 16;
constexpr size_t kMaxOrderedKeys = 4096;  // limit per object, because its keys are searched one after the other

// Builds a value from the events of the parser. nlohmann's own parser can watch nesting and keys too, by a callback,
// but then looks through all siblings after each object, which takes quadratic time.
template <typename Json>
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& name) : name_(name) {}
  ~Builder() override { Dismantle(root_); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return Add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return Add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    Check(kMaxKeys == 0 || object.size() < kMaxKeys, "{}: an object with more than {} keys", name_, kMaxKeys);
    const auto [at, added] = object.emplace(key, nullptr);
    Check(added, "{}: duplicate key {}", name_, Printable(key));
    next_ = &at->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    Fail("{}: not valid JSON: {}", name_, JsonReason(error));
  }

  Json Take() { return std::move(root_); }

 private:
  // Puts a value where the next one belongs: at the end of the innermost array, at its key, or at the root.
  Json* Put(Json value) {
    Json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& array = open_.back()->template get_ref<typename Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    if (!open_.empty()) place = next_;
    *place = std::move(value);
    return place;
  }

  bool Add(Json value) {
    Put(std::move(value));
    return true;
  }

  bool Open(Json empty) {
    Check(open_.size() < kMaxLevels, "{}: JSON is nested more than {} levels deep", name_, kMaxLevels);
    open_.push_back(Put(std::move(empty)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Frees a value from its leaves up. nlohmann's destructor would allocate memory for a list of the elements, and end
  // the program where there is none, which is when an incomplete value is dropped.
  static void Dismantle(Json& value) noexcept {
    if (auto* array = value.template get_ptr<typename Json::array_t*>()) {
      for (Json& item : *array) Dismantle(item);
      array->clear();
    } else if (auto* object = value.template get_ptr<typename Json::object_t*>()) {
      for (auto& entry : *object) Dismantle(entry.second);
      object->clear();
    }
  }

  static constexpr size_t kMaxKeys = std::is_same_v<Json, nlohmann::ordered_json> ? kMaxOrderedKeys : 0;  // 0: any

  const std::string& name_;
  Json root_;
  std::vector<Json*> open_;  // arrays and objects that are not complete, the outermost first
  Json* next_ = nullptr;     // the place of the key that was read last
};

template <typename Json>
Json Parse(std::string_view text, const std::string& name) {
  // The parser treats a zero byte as the end of the text and would ignore what follows.
  Check(text.find('\0') == text.npos, "{}: not valid JSON: a zero byte at {}", name, text.find('\0'));
  Builder<Json> builder(name);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

// `text` with null in the place of the numbers that JSON does not have.
std::string WithoutNonNumbers(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!quoted) {
      size_t size = 0;
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
        if (text.substr(i).starts_with(word)) size = word.size();
      if (size > 0) {
        out += "null";
        i += size - 1;
        continue;
      }
    }
    if (text[i] == '"') quoted = !quoted;
    out += text[i];
    if (quoted && text[i] == '\\' && i + 1 < text.size()) out += text[++i];
  }
  return out;
}

}  // namespace

nlohmann::json ParseJson(std::string_view text, const std::string& name) { return Parse<nlohmann::json>(text, name); }

nlohmann::json ParseJsonOfRows(std::string_view text, const std::string& name) {
  const bool plain = text.find("NaN") == text.npos && text.find("Infinity") == text.npos;
  return plain ? ParseJson(text, name) : ParseJson(WithoutNonNumbers(text), name);
}

int64_t Integer(const nlohmann::json& value) {
  const bool is_one = value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : value.is_number_integer();
  Check(is_one, "{} is not an integer of 64 bits", Shown(value));
  return value.get<int64_t>();
}

// A value that does not come from ParseJson() may have invalid UTF-8, which dump() alone would refuse.
std::string Shown(const nlohmann::json& value) {
  return Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// "[json.exception.parse_error.101] parse error at ..."
std::string JsonReason(const nlohmann::json::exception& error) {
  const std::string_view what = error.what();
  const size_t name = what.starts_with('[') ? what.find("] ") : what.npos;
  return Printable(name == what.npos ? what : what.substr(name + 2));
}

nlohmann::ordered_json ParseOrderedJson(std::string_view text, const std::string& name) {
  return Parse<nlohmann::ordered_json>(text, name);
}

}  // namespace shiftrt
