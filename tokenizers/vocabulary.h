// SPDX-License-Identifier: Apache-2.0
// The parts that all tokenizers share: pieces and their ids, the added tokens that are split off a text before all
// other steps, and the conversion of ids to text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace shiftrt {

inline constexpr int32_t kMaxTokenId = 10'000'000;

class Vocabulary {
 public:
  // Throws Error, naming `where`, for an id out of range, for a piece that already has another id or an id that already
  // has another piece, and for a piece that is empty or not UTF-8.
  void Add(const std::string& piece, int64_t id, const std::string& where);

  std::optional<int32_t> Find(std::string_view piece) const;
  const std::string* Piece(int32_t id) const;                            // null if no piece has this id
  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }  // one past the highest id
  size_t longest() const { return longest_; }                            // bytes

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> pieces_;  // point to the keys of ids_, which do not move
  size_t longest_ = 0;
};

struct AddedToken {
  std::string content;
  int64_t id = -1;
  bool special = false, lstrip = false, rstrip = false, normalized = false;
  bool has_flags = true;  // false if its file, added_tokens.json, has no flags
};

// Splits a text at the added tokens that it contains: leftmost first, then longest.
class AddedTokens {
 public:
  void Add(const AddedToken& token, std::string_view spelling);

  struct Segment {
    std::string_view text;
    int32_t token;  // -1: ordinary text
  };
  std::vector<Segment> Split(std::string_view text) const;

 private:
  std::pair<int32_t, size_t> LongestMatch(std::string_view text) const;  // index into tokens_ or -1, and its length

  std::unordered_map<uint64_t, uint32_t> next_;  // trie: node << 8 | byte -> node; node 0 is the root
  std::vector<int32_t> ends_ = {-1};             // node -> index into tokens_
  std::vector<AddedToken> tokens_;
};

// Converts pieces to bytes.
struct PieceDecoder {
  bool byte_level = false;
  bool byte_fallback = false;  // "<0x0A>" represents a byte
  std::vector<std::pair<std::string, std::string>> replacements;
  int strip_spaces = 0;  // at most this many, at the start of the text

  void Append(std::string_view piece, std::string& bytes) const;
};

// The settings in the files next to the vocabulary: tokenizer_config.json, special_tokens_map.json, added_tokens.json
// and config.json.
struct TokenizerSettings {
  std::filesystem::path directory;
  std::string tokenizer_class;
  std::vector<AddedToken> added;
  std::vector<AddedToken> named;  // special tokens that have a name, such as eos_token, but no id
  std::optional<std::string> bos, eos;
  int64_t bos_id = -1, eos_id = -1;  // used if only config.json names them
  std::optional<bool> add_bos;
  bool add_eos = false;
  bool one_prefix_space = false;         // SentencePiece: no space is added before a text that begins with one
  std::vector<std::string> notes;        // among Tokenizer::notes()
  std::optional<bool> add_prefix_space;  // a space is added before the text; empty: the vocabulary's file says so
  bool legacy = true;  // SentencePiece: the space is also added before text that follows a special token
};

class VocabularyTokenizer : public Tokenizer {
 public:
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::string Piece(int32_t id) const override;
  int32_t vocab_size() const override { return vocabulary_.size(); }

 protected:
  // Sets BOS, EOS and whether BOS is added, from the settings or, if they do not say, from the arguments. A name that
  // is not in the vocabulary names no token. Throws Error if BOS is to be added and there is none.
  void SetSpecials(const TokenizerSettings& settings, int32_t bos, int32_t eos, bool adds_bos);
  void AddTokens(const std::vector<AddedToken>& tokens, const std::string& where);

  Vocabulary vocabulary_;
  AddedTokens raw_, normalized_;  // matched before and after normalization
  PieceDecoder decoder_;

 private:
  const std::string& PieceOrThrow(int32_t id) const;
  std::unordered_map<int32_t, bool> special_;  // added token -> whether it is special
};

// Throws Error for text that is not UTF-8.
void CheckText(std::string_view text);

}  // namespace shiftrt
