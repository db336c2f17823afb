// Errors, and the one way to raise them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
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
  OutOfMemory(const char* what, int64_t asked_bytes, int64_t free_bytes, int64_t total_bytes)
      : Error(fmt::format("the GPU is out of memory: {} asks for {:.1f} MiB, {:.1f} of {:.1f} MiB are free", what,
                          MiB(asked_bytes), MiB(free_bytes), MiB(total_bytes))),
        free_bytes(free_bytes) {}
  // The same, and what would fit.
  OutOfMemory(const OutOfMemory& error, const std::string& advice)
      : Error(std::string(error.what()) + "; " + advice), free_bytes(error.free_bytes) {}

  int64_t free_bytes;

 private:
  static double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
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
