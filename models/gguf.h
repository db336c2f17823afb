// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: what their metadata and tensors are called, and what that is in a Hugging Face directory.
// docs/formats.md says what is read. Source: gguf-py/gguf/constants.py and convert_hf_to_gguf.py of llama.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/config.h"
#include "runtime/gguf.h"

namespace shiftrt {

struct BlockTensor;

// The config.json that the model would have as a Hugging Face directory. The frequency factors in rope_freqs.weight
// become rope type llama3. Throws Error naming file and key for an architecture that is not supported, a value that is
// missing, out of range or not supported, and a key of the architecture that is not known, because it might change the
// model.
nlohmann::json GgufConfig(const GgufFile& file);
ModelConfig LoadGgufConfig(const std::filesystem::path& file);

// GGUF's name of a tensor of a block, after "blk.N.": "attn_q.weight". Null where the supported architectures have
// none.
const char* GgufName(const BlockTensor& tensor);

// Whether the rows of a tensor are stored in the interleaved order of llama.cpp's rotary embedding: queries and keys of
// family llama (FileTensor::interleaved_heads).
bool IsInterleavedInGguf(const ModelConfig& config, const BlockTensor& tensor);

}  // namespace shiftrt
