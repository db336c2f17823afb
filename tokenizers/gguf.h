// SPDX-License-Identifier: Apache-2.0
// Reads tokenizers in GGUF files: byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). They are converted to the
// files that the same tokenizer has in a Hugging Face directory, so that there is one implementation of each.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

bool HasGgufTokenizer(const GgufFile& file);

// Loads the tokenizer. Throws Error naming file and key for a tokenizer model or a pre-tokenizer that is not supported,
// token ids and types out of range, a token that occurs twice or is not UTF-8, and a malformed byte token.
std::unique_ptr<Tokenizer> LoadGgufTokenizer(const GgufFile& file);

// The files of the tokenizer for a Hugging Face directory, by name: tokenizer.json or tokenizer.model, and
// tokenizer_config.json with the chat template. The tokenizer is not loaded: throws Error only for what cannot be
// converted.
std::map<std::string, std::string> GgufTokenizerFiles(const GgufFile& file);

// True if special tokens of the file's SentencePiece vocabulary take the spaces after them: Phi-3's.
bool StripsGgufSpaces(const GgufMetadata& metadata);

// The Jinja text of the chat template; "" if the file has none. Throws Error unless it is UTF-8.
std::string GgufChatTemplate(const GgufFile& file);

// The rules by which byte-level BPE splits text into words before it merges.
struct GgufPreTokenizer {
  const char* name = nullptr;            // tokenizer.ggml.pre
  const char* pattern = nullptr;         // as tokenizers/pretokenizer.h has it
  std::vector<const char*> before = {};  // patterns that split the text before it does
  bool nfc = false;                      // the text is normalized first
  bool digits = false;                   // digits are split off one by one before the pattern is applied
  bool whole_words = false;              // a word that is a piece is not merged from its parts
  bool add_bos = false;                  // the start token is added, if the file does not say
};
// The first pre-tokenizer of the table with these properties, of whose patterns `pattern` is the last; null if there is
// none.
const GgufPreTokenizer* FindGgufPreTokenizer(const std::vector<std::string>& patterns, bool digits, bool whole_words);

}  // namespace shiftrt
