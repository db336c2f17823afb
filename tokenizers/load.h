// SPDX-License-Identifier: Apache-2.0
// Loaders for the tokenizer formats that a model directory can contain.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tokenizers/vocabulary.h"

namespace shiftrt {

// Throws Error naming the file if it is not valid JSON.
nlohmann::json ReadTokenizerJson(const std::filesystem::path& path);
// Parses an added token of tokenizer.json or tokenizer_config.json.
AddedToken ParseAddedToken(const nlohmann::json& json, int64_t id, const std::string& where);
// Throws Error naming `where` unless `json` is an integer that can be a token id.
int64_t ParseTokenId(const nlohmann::json& json, const std::string& where);

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings);  // tokenizer.json
// The contents of a tokenizer.json; errors call it `where`.
std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings, const nlohmann::json& root,
                                             const std::string& where);
std::unique_ptr<Tokenizer> LoadVocabAndMerges(const TokenizerSettings& settings);  // vocab.json + merges.txt
std::unique_ptr<Tokenizer> LoadTiktoken(const TokenizerSettings& settings, const std::string& file);
// The bytes of a SentencePiece model; errors call it `where`.
std::unique_ptr<Tokenizer> LoadSentencePiece(const TokenizerSettings& settings, const std::string& bytes,
                                             const std::string& where);

}  // namespace shiftrt
