// SPDX-License-Identifier: Apache-2.0
// Writes a model's tokenizer as metadata of a GGUF file, which tokenizers/gguf.h reads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/gguf_writer.h"

namespace shiftrt {

// Adds the tokenizer and the chat template of the model, which must have a tokenizer. Ids without a piece, up to the
// number of rows of the embedding, become unused tokens, because llama.cpp requires as many tokens as rows. Returns
// notes for the user. Throws Error naming the file for a tokenizer that GGUF cannot express.
std::vector<std::string> AddGgufTokenizer(const Model& model, GgufWriter& file);

// Throws Error unless the tokenizer in the GGUF file `written` has the model's pieces, and gives its ids for some
// texts. One that was copied from another GGUF file, and cannot be read there, is not checked.
void VerifyGgufTokenizer(const Model& model, const std::filesystem::path& written);

}  // namespace shiftrt
