// Errors, and the one way to raise them.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace shiftrt {

// Something that went wrong with a file, a tensor or the machine: names the file, the tensor, what was expected and
// what was found. The tools print it and exit with 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A device's memory does not hold what was asked of it; with less at once the same work may be done.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A request that makes no sense whatever the files hold (a rank above the hidden size, say). Exit status 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void FailUsage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error with the formatted message unless `condition` holds.
template <typename... Args>
void Check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    Fail(format, std::forward<Args>(args)...);
}

}  // namespace shiftrt
