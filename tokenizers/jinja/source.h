// SPDX-License-Identifier: Apache-2.0
// The text of a template, and errors that name a place in it.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>

namespace shiftrt::jinja {

struct Source {
  std::string name;  // the file's name, for errors
  std::string text;  // line ends are "\n"

  // Throws Error: "name:line:column: message". Lines and columns (in characters) are counted from 1; `at` is a byte.
  [[noreturn]] void FailAt(size_t at, const std::string& message) const;
  template <typename... Args>
  [[noreturn]] void Fail(size_t at, fmt::format_string<Args...> format, Args&&... args) const {
    FailAt(at, fmt::format(format, std::forward<Args>(args)...));
  }
};

}  // namespace shiftrt::jinja
