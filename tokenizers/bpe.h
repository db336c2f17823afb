// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding, over the byte-level alphabet or over characters with byte fallback. The merges come from a list
// or, as in tiktoken, from the ranks of the pieces.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizers/pretokenizer.h"
#include "tokenizers/vocabulary.h"

namespace shiftrt {

struct BpeMerge {
  int32_t rank, id;
};

class BpeMerges {
 public:
  // Adds the merge of two pieces. Call in the order of the ranks. Throws Error, naming `where`, if a part or the merged
  // piece is not in the vocabulary.
  void Add(std::string_view left, std::string_view right, const Vocabulary& vocabulary, const std::string& where);
  const BpeMerge* Find(int32_t left, int32_t right) const;

 private:
  std::unordered_map<uint64_t, BpeMerge> merges_;
  int32_t next_rank_ = 0;
};

struct BpeParts {
  std::string where;  // the file, named in errors
  Vocabulary vocabulary;
  std::optional<BpeMerges> merges;  // none: two pieces merge if the vocabulary has their concatenation, lowest id first
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PieceDecoder decoder;
  bool byte_level = true;              // words are written in the byte-level alphabet
  bool byte_fallback = false;          // characters without a piece become "<0xNN>"
  bool ignore_merges = false;          // a word that is itself a piece is encoded as that piece
  std::optional<std::string> unknown;  // one that the vocabulary lacks is an error where it is needed
  bool fuse_unknown = false;
  std::vector<int32_t> prefix;     // put before a text, instead of BOS
  std::vector<std::string> notes;  // Tokenizer::notes()
};

class BpeTokenizer final : public VocabularyTokenizer {
 public:
  BpeTokenizer(BpeParts parts, const TokenizerSettings& settings, const std::optional<std::string>& bos,
               const std::optional<std::string>& eos, bool adds_bos);
  std::vector<int32_t> Encode(std::string_view text) const override;

 private:
  struct Symbol;
  class WordCache;
  std::optional<BpeMerge> FindMerge(std::string_view word, const Symbol& left, const Symbol& right) const;
  std::vector<Symbol> Spell(std::string_view word) const;
  void AddUnspelt(std::string_view word, size_t begin, size_t length, std::vector<Symbol>& symbols) const;
  void Merge(std::string_view word, std::vector<Symbol>& symbols) const;
  void EncodeWord(std::string_view word, std::vector<int32_t>& ids) const;

  std::string where_;
  std::optional<BpeMerges> merges_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  bool byte_level_, byte_fallback_, ignore_merges_, fuse_unknown_;
  int32_t unknown_ = -1;
  std::optional<std::string> missing_unknown_;  // a token for the unknown that the vocabulary lacks
};

}  // namespace shiftrt
