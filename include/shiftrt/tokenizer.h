// SPDX-License-Identifier: Apache-2.0
/// \file
/// Tokenizers and chat templates of models, without their weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

/// The tokenizer of a model. Opening it reads no weights. Copies share it, and any number of threads may use it.
class ModelTokenizer {
 public:
  /// Opens the tokenizer of a model.
  /// \param name as for LanguageModel::Open(); a directory needs no more than the files of a tokenizer
  /// \return the tokenizer
  /// \throws Error if nothing is found, or a file is malformed or not supported
  static ModelTokenizer Open(const std::string& name);

  /// \param text UTF-8
  /// \param bos begin with the tokens that the tokenizer's configuration puts before a text, if there are any
  /// \return token ids
  /// \throws Error for invalid UTF-8
  std::vector<int32_t> Encode(std::string_view text, bool bos = false) const;
  /// \param tokens token ids
  /// \return their text, special tokens included
  /// \throws Error for an id outside the vocabulary of the tokenizer
  std::string Decode(std::span<const int32_t> tokens) const;
  /// \param token a token id
  /// \return the entry of the vocabulary: its bytes may be written in the tokenizer's own way
  /// \throws Error for an id outside the vocabulary of the tokenizer
  std::string Piece(int32_t token) const;

  /// \return what the tokenizer's files say and is done in another way, such as an end token after a text, which is
  ///   left out: whole sentences for the user, each of which names its file
  std::vector<std::string> Notes() const;

  /// Writes a conversation as the chat template of the model does. Encode() the text without `bos`.
  /// \param conversation JSON: a list of {"role": ..., "content": ...}, up to where the reply begins, or an object of
  ///     variables of the template, "messages" among them
  /// \param name of the conversation, for errors
  /// \return the text that the model reads
  /// \throws Error for malformed JSON, if the model has no chat template, and if the template refuses the messages
  std::string RenderChat(std::string_view conversation, const std::string& name = "the conversation") const;

 private:
  struct Impl;
  explicit ModelTokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace shiftrt
