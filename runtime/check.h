// SPDX-License-Identifier: Apache-2.0
// The functions that check conditions and throw errors.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "include/shiftrt/error.h"

namespace shiftrt {

// Names the field that a UsageError is about: FailUsage(Field("rank"), "{} is not a rank of this model", rank).
struct Field {
  explicit Field(std::string name) : name(std::move(name)) {}
  std::string name;
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void FailUsage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void FailUsage(const Field& field, fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(field.name, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error with the formatted message unless `condition` holds.
template <typename... Args>
void Check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    Fail(format, std::forward<Args>(args)...);
}

}  // namespace shiftrt
