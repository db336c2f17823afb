// SPDX-License-Identifier: Apache-2.0
// The keys of an architecture in the metadata of a GGUF file.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/check.h"
#include "runtime/gguf.h"

namespace shiftrt {

inline constexpr int64_t kMaxGgufNumber = int64_t{1} << 31;  // ParseConfig has the limit of each number

// Reads the metadata of one architecture. Keys are given without its prefix, and each key that is read is recorded.
class GgufKeys {
 public:
  GgufKeys(const GgufMetadata& metadata, std::string prefix) : metadata_(metadata), prefix_(std::move(prefix) + ".") {}

  bool Has(const char* key) { return metadata_.Has(Full(key)); }
  bool HasList(const char* key) {
    const auto found = metadata_.values().find(Full(key));
    return found != metadata_.values().end() && found->second.array;
  }
  const std::string& file() const { return metadata_.name(); }
  bool Flag(const char* key, bool fallback) { return metadata_.Flag(Full(key), fallback); }
  std::vector<bool> Flags(const char* key) { return metadata_.Flags(Full(key)); }
  std::vector<int64_t> Integers(const char* key) { return metadata_.Integers(Full(key)); }
  int64_t Integer(const char* key) { return metadata_.Integer(Full(key), 1, kMaxGgufNumber); }
  int64_t Integer(const char* key, int64_t fallback) {
    return metadata_.Integer(Full(key), 0, kMaxGgufNumber, fallback);
  }
  double Number(const char* key, double fallback) { return metadata_.Number(Full(key), fallback); }
  std::string_view Text(const char* key, std::string_view fallback) { return metadata_.Text(Full(key), fallback); }
  // Checks a setting that is supported with one value only. The file may leave it out.
  void Only(const char* key, double value) {
    const double found = Number(key, value);
    Check(found == value, "{}: {} is {}; only {} is supported", metadata_.name(), Full(key), found, value);
  }
  void OnlyInteger(const char* key, int64_t value, const char* why) {
    const int64_t found = Integer(key, value);
    Check(found == value, "{}: {} is {}, expected {}: {}", metadata_.name(), Full(key), found, value, why);
  }
  void Ignore(const char* key) { Full(key); }
  void RefuseOthers() const {
    for (const auto& [key, value] : metadata_.values())
      Check(!key.starts_with(prefix_) || read_.contains(key),
            "{}: {} is not known, and might change what the model computes", metadata_.name(), key);
  }
  std::string Full(const char* key) { return *read_.insert(prefix_ + key).first; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace shiftrt
