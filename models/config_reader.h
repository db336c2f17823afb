// SPDX-License-Identifier: Apache-2.0
// Reads one level of a config.json, checks every value, and records which keys were asked for. A value of null counts
// as absent.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

class ConfigReader {
 public:
  // `file` is the name for errors. Keeps references to both arguments.
  ConfigReader(const nlohmann::json& object, const std::string& file) : object_(object), file_(file) {}

  const std::string& file() const { return file_; }
  // `key` must be there; a key of a hostile file may contain a zero byte.
  const nlohmann::json& operator[](const std::string& key) const { return object_[key]; }
  bool Has(const char* key) const {
    asked_.insert(key);
    return object_.contains(key) && !object_[key].is_null();
  }
  bool IsNull(const char* key) const {
    asked_.insert(key);
    return object_.contains(key) && object_[key].is_null();
  }
  // The keys with a value that nothing has asked for.
  std::vector<std::string> Unread() const {
    std::vector<std::string> unread;
    for (const auto& [key, value] : object_.items())
      if (!value.is_null() && !asked_.contains(key)) unread.push_back(key);
    return unread;
  }

  int64_t Integer(const char* key, int64_t low, int64_t high) const {
    Check(Has(key), "{}: {} is missing", file_, key);
    const nlohmann::json& value = object_[key];
    Check(value.is_number_integer(), "{}: {} is {}, expected a whole number", file_, key, Shown(value));
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : true;
    Check(fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high, "{}: {} is {}, expected {} to {}", file_,
          key, Shown(value), low, high);
    return value.get<int64_t>();
  }
  int64_t Integer(const char* key, int64_t low, int64_t high, int64_t fallback) const {
    return Has(key) ? Integer(key, low, high) : fallback;
  }
  double Number(const char* key, double low, double high) const {
    Check(Has(key), "{}: {} is missing", file_, key);
    const nlohmann::json& value = object_[key];
    Check(value.is_number(), "{}: {} is {}, expected a number", file_, key, Shown(value));
    const double number = value.get<double>();
    Check(number >= low && number <= high, "{}: {} is {}, expected {} to {}", file_, key, number, low, high);
    return number;
  }
  double Number(const char* key, double low, double high, double fallback) const {
    return Has(key) ? Number(key, low, high) : fallback;
  }
  bool Flag(const char* key, bool fallback) const {
    if (!Has(key)) return fallback;
    Check(object_[key].is_boolean(), "{}: {} is {}, expected true or false", file_, key, Shown(object_[key]));
    return object_[key].get<bool>();
  }
  std::string Word(const char* key, const std::string& fallback) const {
    if (!Has(key)) return fallback;
    Check(object_[key].is_string(), "{}: {} is {}, expected a string", file_, key, Shown(object_[key]));
    return object_[key].get<std::string>();
  }

 private:
  const nlohmann::json& object_;
  const std::string& file_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace shiftrt
