// SPDX-License-Identifier: Apache-2.0
/// \file
/// The errors that the library throws. All of them derive from shiftrt::Error; std::bad_alloc may come as well.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace shiftrt {

/// Something is wrong with a file, a tensor or the machine. The message names the file and the tensor, what was
/// expected and what was found.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The memory of a GPU is too small for what was asked. The same work may succeed in smaller pieces: fewer tokens at a
/// time, or a shorter cache.
class OutOfMemory : public Error {
 public:
  /// \param what what the memory is for
  /// \param asked_bytes bytes that were asked for
  /// \param free_bytes bytes that are free on the GPU
  /// \param total_bytes bytes that the GPU has
  OutOfMemory(const char* what, int64_t asked_bytes, int64_t free_bytes, int64_t total_bytes);
  /// \param error the error to repeat
  /// \param advice what would fit; it is appended to the message
  OutOfMemory(const OutOfMemory& error, const std::string& advice);

  int64_t free_bytes;  ///< bytes that were free on the GPU when the allocation failed
};

/// A request that makes no sense whatever the files contain, for example a rank above the hidden size of the model.
class UsageError : public Error {
 public:
  /// An error that no single field causes.
  /// \param reason what is wrong
  explicit UsageError(const std::string& reason) : Error(reason), reason_(reason) {}
  /// An error that one field of the settings, or one argument, causes. what() is "<field>: <reason>".
  /// \param field the name of the field as it is declared, for example "rank"
  /// \param reason what is wrong with its value
  UsageError(const std::string& field, const std::string& reason)
      : Error(field + ": " + reason), field_(field), reason_(reason) {}

  /// \return the name of the field that causes the error; empty if no single field does
  const std::string& field() const { return field_; }
  /// \return what is wrong, without the name of the field
  const std::string& reason() const { return reason_; }

 private:
  std::string field_, reason_;
};

/// A computation that stopped because RequestInterrupt() was called.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

/// Makes long computations of all threads of this process throw Interrupted soon. It can be called from a signal
/// handler. A request cannot be taken back: it is meant for the end of the program.
void RequestInterrupt() noexcept;

}  // namespace shiftrt
