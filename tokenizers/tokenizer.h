// Text to token ids and back, exactly as the model's own tokenizer does it.
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

  // Ids of `text` without BOS or EOS. Special tokens written out in the text ("<|endoftext|>") become their ids, as the
  // reference implementation does by default. Throws Error for invalid UTF-8.
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  // Text of ids. Ids outside the vocabulary throw Error. Special tokens are left out when `skip_special`.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  // The piece as the vocabulary holds it, for people to look at.
  virtual std::string Piece(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;  // one past the highest id, added tokens included

  int32_t bos_token() const { return bos_; }   // -1: none
  int32_t eos_token() const { return eos_; }   // -1: none
  bool adds_bos() const { return adds_bos_; }  // as the tokenizer's own config says
  // Encode() with BOS in front where the tokenizer's config asks for it.
  std::vector<int32_t> EncodeWithBos(std::string_view text) const;
  // The same for the text of `file`, which errors name.
  std::vector<int32_t> EncodeWithBos(std::string_view text, const std::filesystem::path& file) const;

 protected:
  int32_t bos_ = -1, eos_ = -1;
  bool adds_bos_ = false;
};

// Opens the tokenizer of a model directory: tokenizer.json; or vocab.json + merges.txt; or tokenizer.model
// (SentencePiece or tiktoken ranks, told apart by content); with tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and config.json read where present. Throws Error naming the file for anything malformed or not
// supported.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& directory);

// What `reply` adds to the text of `prompt`, special tokens left out. Decoded on its own it would lose the space that
// SentencePiece drops at the start of a text.
std::string DecodeReply(const Tokenizer& tokenizer, std::span<const int32_t> prompt, std::span<const int32_t> reply);

// Text that arrives token by token: Push returns what can be printed now and keeps back the bytes of an unfinished
// character; Finish returns what is left, replacing an unfinished character by U+FFFD.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string Push(int32_t id);
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::string printed_;  // what of Decode(ids_) has been returned
};

}  // namespace shiftrt
