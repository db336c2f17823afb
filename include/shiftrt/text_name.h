// SPDX-License-Identifier: Apache-2.0
/// \file
/// The names of texts.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace shiftrt {

/// The name of a text: a file (.txt, .jsonl, .json, .parquet) or a known name such as "c4". It is a std::string that
/// two string literals in braces do not compile for: a std::string takes them for the begin and the end of one text.
class TextName : public std::string {
 public:
  /// No text.
  TextName() = default;
  /// \param name a file or a known name
  TextName(std::string name) : std::string(std::move(name)) {}
  /// \param name the same
  TextName(const char* name) : std::string(name) {}
  /// \param file the same
  TextName(const std::filesystem::path& file) : std::string(file.string()) {}
  /// Several texts are not one name.
  TextName(const char*, const char*) = delete;
};

}  // namespace shiftrt
