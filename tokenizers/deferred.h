// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model, which is read when text is first read or written: what needs only weights or token ids
// works with a tokenizer that cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tokenizers/tokenizer.h"

namespace shiftrt {

/// A tokenizer that may not be loaded yet, or none. Copies share what they load.
class DeferredTokenizer {
 public:
  /// No tokenizer.
  DeferredTokenizer() = default;
  /// A tokenizer that is there already, without a limit of its ids. Null is none.
  DeferredTokenizer(std::shared_ptr<const Tokenizer> loaded);  // NOLINT(google-explicit-constructor)
  /// As above.
  DeferredTokenizer(std::unique_ptr<Tokenizer> loaded);  // NOLINT(google-explicit-constructor)
  /// \param model A directory or GGUF file for which HasTokenizer() is true.
  /// \param rows The rows of the model's embedding. The tokenizer may have further ids, for which the model has no
  ///   weights: a text that uses one of them is refused when it is encoded.
  DeferredTokenizer(std::filesystem::path model, int64_t rows);

  /// \return Whether there is a tokenizer, which may be one that cannot be loaded.
  explicit operator bool() const { return state_ != nullptr; }
  /// \return The tokenizer, which the first call loads; any number of threads may call. There must be one.
  /// \throws Error as LoadTokenizer() does, in every call.
  const Tokenizer& Get() const;
  /// Has `tell` called with each of Tokenizer::notes() when the tokenizer is loaded. There must be one, which nobody
  /// uses yet.
  /// \param tell what to call
  void ReportTo(std::function<void(const std::string&)> tell) const;
  /// As Get().
  const Tokenizer* operator->() const { return &Get(); }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace shiftrt
