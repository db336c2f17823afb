// SPDX-License-Identifier: Apache-2.0
// Translates between GGUF files and Hugging Face checkpoints: names of metadata and of tensors. docs/formats.md says
// what is read. Source: gguf-py/gguf/constants.py and convert_hf_to_gguf.py of llama.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

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

// Finds the settings of Llama 3's RoPE scaling that divide each default frequency by its factor, up to rounding. Empty
// if there are none, or if too few frequencies determine them. `factors` has head_dim / 2 elements.
std::optional<RopeSpec> FindLlama3Scaling(const std::vector<float>& factors, double theta, int64_t head_dim);

// general.architecture for a model of this configuration. Null if the supported architectures compute a different
// model: other families, windows, biases that they lack.
const char* GgufArchitecture(const ModelConfig& config);

// GGUF's names of the tensors outside the blocks.
inline constexpr const char *kGgufEmbedding = "token_embd.weight", *kGgufFinalNorm = "output_norm.weight",
                            *kGgufHead = "output.weight", *kGgufRopeFactors = "rope_freqs.weight";

// GGUF's name of a tensor of a block, after "blk.N.", such as "attn_q.weight". Null if the supported architectures lack
// the tensor.
const char* GgufName(const BlockTensor& tensor);

// True if GGUF stores the rows of the tensor in the interleaved order of llama.cpp's rotary embedding: queries and keys
// of architecture llama (FileTensor::interleaved_heads).
bool IsInterleavedInGguf(const ModelConfig& config, const BlockTensor& tensor);

}  // namespace shiftrt
