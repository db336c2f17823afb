// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back, exactly as the model's own tokenizer does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of `text` without BOS or EOS. Special tokens spelled in the text ("<|endoftext|>") become their ids, as in the
  // default of the reference implementation. Throws Error for invalid UTF-8.
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  // The text of `ids`, without special tokens if `skip_special`. Throws Error for an id outside the vocabulary; an
  // id within it that no token has stands for no text.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  // The piece as stored in the vocabulary, for display.
  virtual std::string Piece(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;  // one past the highest id, added tokens included

  int32_t bos_token() const { return bos_; }  // -1: none
  int32_t eos_token() const { return eos_; }  // -1: none
  // The tokens that the tokenizer's files put before a text: none, BOS, or several ("[gMASK]<sop>").
  const std::vector<int32_t>& prefix() const { return prefix_; }
  bool adds_bos() const { return !prefix_.empty(); }
  // Whole sentences for the user, each of which names its file: what the files say and is not done.
  const std::vector<std::string>& notes() const { return notes_; }
  // Encode(), preceded by prefix().
  std::vector<int32_t> EncodeWithBos(std::string_view text) const;
  // As above; errors name `file`, from which the text comes.
  std::vector<int32_t> EncodeWithBos(std::string_view text, const std::filesystem::path& file) const;

 protected:
  int32_t bos_ = -1, eos_ = -1;
  std::vector<int32_t> prefix_;
  std::vector<std::string> notes_;
};

// The files of a tokenizer, for messages.
inline constexpr const char* kTokenizerFiles = "tokenizer.json, vocab.json with merges.txt, or tokenizer.model";
// `model` is a directory or a GGUF file.
bool HasTokenizer(const std::filesystem::path& model);

// Loads the tokenizer of a GGUF file (tokenizers/gguf.h) or of a model directory: tokenizer.json; or vocab.json +
// merges.txt; or tokenizer.model (SentencePiece or tiktoken ranks, distinguished by content). tokenizer_config.json,
// special_tokens_map.json, added_tokens.json and config.json are read if present. Throws Error naming the file for
// anything malformed or not supported.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& model);

// The text that `reply` adds to the text of `prompt`, without special tokens. (Decoding `reply` alone would lose a
// leading space, because SentencePiece drops it at the start of a text.)
std::string DecodeReply(const Tokenizer& tokenizer, std::span<const int32_t> prompt, std::span<const int32_t> reply);

// Decodes text token by token. Push returns the text that can be printed now and holds back the bytes of an incomplete
// character. Finish returns the rest; an incomplete character becomes U+FFFD.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string Push(int32_t id);
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::string printed_;  // the part of Decode(ids_) that was returned
};

}  // namespace shiftrt
