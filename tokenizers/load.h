// SPDX-License-Identifier: Apache-2.0
// Loaders for the tokenizer formats that a model directory can contain.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tokenizers/vocabulary.h"

namespace shiftrt {

// Reads the settings in the files next to the vocabulary. Throws Error naming the file, or nlohmann::json::exception,
// for anything malformed.
TokenizerSettings ReadTokenizerSettings(const std::filesystem::path& directory);
// Throws Error naming the file if it is not valid JSON.
nlohmann::json ReadTokenizerJson(const std::filesystem::path& path);
// Returns the object in the file, or an empty one if there is no such file. Throws Error naming the file for anything
// else.
nlohmann::json ReadTokenizerJsonIfPresent(const std::filesystem::path& path);
// Parses an added token of tokenizer.json or tokenizer_config.json.
AddedToken ParseAddedToken(const nlohmann::json& json, int64_t id, const std::string& where);
// The added tokens of a tokenizer.json with those of the files next to it. As in transformers, the flags in
// tokenizer_config.json take precedence.
std::vector<AddedToken> WithTokensOf(std::vector<AddedToken> added, const TokenizerSettings& settings);
// The tokens of settings.named that `vocabulary` has and that `added` lacks, with their ids.
std::vector<AddedToken> NamedTokens(const TokenizerSettings& settings, const Vocabulary& vocabulary,
                                    const std::vector<AddedToken>& added);
// Throws Error naming `where` unless `json` is an integer that can be a token id.
int64_t ParseTokenId(const nlohmann::json& json, const std::string& where);

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings);  // tokenizer.json
// Loads a tokenizer from the contents of a tokenizer.json; errors call it `where`.
std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings, const nlohmann::json& root,
                                             const std::string& where);
std::unique_ptr<Tokenizer> LoadVocabAndMerges(const TokenizerSettings& settings);  // vocab.json + merges.txt
std::unique_ptr<Tokenizer> LoadTiktoken(const TokenizerSettings& settings, const std::string& file);
// The pieces of a SentencePiece model by id, and its treatment of spaces.
struct SentencePieceTable {
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::vector<int32_t> types;  // the numbers of sentencepiece_model.proto, which are those of GGUF
  bool bpe = false;            // otherwise a unigram model
  bool dummy_prefix = true, trims_spaces = true;
};
// Reads the table from the `bytes` of a SentencePiece model; errors call it `where`. Throws Error as LoadSentencePiece
// does.
SentencePieceTable ReadSentencePieceTable(const std::string& bytes, const std::string& where);
// Loads the same bytes as a tokenizer.
std::unique_ptr<Tokenizer> LoadSentencePiece(const TokenizerSettings& settings, const std::string& bytes,
                                             const std::string& where);

}  // namespace shiftrt
