// SPDX-License-Identifier: Apache-2.0
// Tokenizers in GGUF files: byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). They are read as the files that
// the same tokenizer has in a Hugging Face directory, so that there is one implementation of each.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/gguf.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {

bool HasGgufTokenizer(const GgufFile& file);

// Throws Error naming file and key for anything malformed or not supported: another tokenizer model, a pre-tokenizer
// that is not known, token ids and types out of range, a token that is there twice or is not UTF-8, a byte token that
// is none.
std::unique_ptr<Tokenizer> LoadGgufTokenizer(const GgufFile& file);

// The files of the tokenizer for a Hugging Face directory, by name: tokenizer.json or tokenizer.model, and
// tokenizer_config.json with the chat template. Throws Error as LoadGgufTokenizer does.
std::map<std::string, std::string> GgufTokenizerFiles(const GgufFile& file);

// The Jinja text of the chat template; "" if the file has none. Throws Error unless it is UTF-8.
std::string GgufChatTemplate(const GgufFile& file);

}  // namespace shiftrt
