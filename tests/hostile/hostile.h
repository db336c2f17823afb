// SPDX-License-Identifier: Apache-2.0
// Tables of named malformed inputs. A Reader makes a valid input in an empty directory, and reads it. A Case changes
// that input in one way and says what the reader must do with it. CheckReader() runs all cases of a reader.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/files.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt::hostile {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Reader {
  std::function<void(const fs::path& directory)> make;
  // Reads the input and returns a text that is the same for equal results. Throws Error.
  std::function<std::string(const fs::path& directory)> read;
};

struct Case {
  const char* name;
  std::function<void(const fs::path& directory)> change;
  // Parts of the message of a refusal: the file, the place in it, and what is wrong. Empty where the changed input has
  // the result of the valid one, because the change means nothing.
  std::vector<std::string> refused;
};

inline void CheckReader(const Reader& reader, const std::vector<Case>& cases) {
  std::string right;
  {
    const TemporaryDirectory directory;
    reader.make(directory.path());
    ASSERT_NO_THROW(right = reader.read(directory.path()));
    ASSERT_FALSE(right.empty());
  }
  for (const Case& one : cases) {
    const TemporaryDirectory directory;
    reader.make(directory.path());
    one.change(directory.path());
    std::string result;
    const std::string message = Refusal([&] { result = reader.read(directory.path()); });
    if (one.refused.empty()) {
      EXPECT_EQ(message, "") << one.name;
      EXPECT_EQ(result, right) << one.name;
      continue;
    }
    EXPECT_NE(message, "") << one.name << ": accepted";
    for (const std::string& part : one.refused)
      EXPECT_NE(message.find(part), std::string::npos) << one.name << ": expected " << part << ", found: " << message;
    // A message is for people: it fits on a screen, and says nothing of the libraries that were used.
    EXPECT_LT(message.size(), 2000u) << one.name;
    for (const char* library : {"json.exception", "std::", "vector::", "basic_string"})
      EXPECT_EQ(message.find(library), std::string::npos) << one.name << ": " << message;
    for (const char byte : message)
      EXPECT_TRUE(byte == '\n' || static_cast<unsigned char>(byte) >= 0x20) << one.name << ": " << message;
  }
}

// Changes of a file.
using Change = std::function<void(const fs::path& directory)>;

inline Change Text(const char* file, std::string content) {
  return [=](const fs::path& directory) { WriteText(directory / file, content); };
}
inline Change Without(const char* file) {
  return [=](const fs::path& directory) { fs::remove(directory / file); };
}
// Only the first `share` of the bytes.
inline Change Cut(const char* file, double share) {
  return [=](const fs::path& directory) {
    const std::string bytes = ReadFile(directory / file);
    WriteText(directory / file, bytes.substr(0, static_cast<size_t>(share * static_cast<double>(bytes.size()))));
  };
}
inline Change Longer(const char* file, std::string more) {
  return [=](const fs::path& directory) { WriteText(directory / file, ReadFile(directory / file) + more); };
}
// `to` in the place of the first `from`, which must be there.
inline Change Replaced(const char* file, std::string from, std::string to) {
  return [=](const fs::path& directory) {
    std::string bytes = ReadFile(directory / file);
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << file << " has no " << from;
    WriteText(directory / file, bytes.replace(at, from.size(), to));
  };
}
// One bit of the byte so far from the end.
inline Change Flipped(const char* file, size_t from_end) {
  return [=](const fs::path& directory) {
    std::string bytes = ReadFile(directory / file);
    bytes.at(bytes.size() - from_end) ^= 1;
    WriteText(directory / file, bytes);
  };
}
// NaN in the place of the last number, of type T.
template <typename T>
Change NanAtTheEnd(const char* file) {
  return [=](const fs::path& directory) {
    std::string bytes = ReadFile(directory / file);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::memcpy(bytes.data() + bytes.size() - sizeof(nan), &nan, sizeof(nan));
    WriteText(directory / file, bytes);
  };
}
inline Change Set(const char* file, const std::string& pointer, Json value) {
  return [=](const fs::path& directory) {
    Json json = Json::parse(ReadFile(directory / file));
    json[Json::json_pointer(pointer)] = value;
    WriteText(directory / file, json.dump());
  };
}

}  // namespace shiftrt::hostile
