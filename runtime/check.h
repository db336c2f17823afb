// Errors, and the one way to raise them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

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
// Where one option or argument is at fault, it carries that field by its name in the library ("rank", "gram.load"), so
// that a caller can say what its user called it.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& reason) : Error(reason), reason_(reason) {}
  // what() is "<field>: <reason>".
  UsageError(const std::string& field, const std::string& reason)
      : Error(field + ": " + reason), field_(field), reason_(reason) {}

  const std::string& field() const { return field_; }    // empty where no single field is at fault
  const std::string& reason() const { return reason_; }  // what is wrong, without the field's name

 private:
  std::string field_, reason_;
};

// Names the field of a UsageError: FailUsage(Field("rank"), "{} is not a rank of this model", rank).
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
