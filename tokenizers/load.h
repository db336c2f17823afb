// The kinds of tokenizer a directory can hold.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tokenizers/vocabulary.h"

namespace shiftrt {

// Throws Error naming the file if it is not valid JSON.
nlohmann::json ReadTokenizerJson(const std::filesystem::path& path);
// An added token as tokenizer.json and tokenizer_config.json write it.
AddedToken ParseAddedToken(const nlohmann::json& json, int64_t id, const std::string& where);
// Throws Error naming `where` unless it is an integer that can be an id.
int64_t ParseTokenId(const nlohmann::json& json, const std::string& where);

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings);   // tokenizer.json
std::unique_ptr<Tokenizer> LoadVocabAndMerges(const TokenizerSettings& settings);  // vocab.json + merges.txt
std::unique_ptr<Tokenizer> LoadTiktoken(const TokenizerSettings& settings, const std::string& file);
std::unique_ptr<Tokenizer> LoadSentencePiece(const TokenizerSettings& settings, const std::string& file);

}  // namespace shiftrt
