// SPDX-License-Identifier: Apache-2.0
// Translates between GGUF files and Hugging Face checkpoints: names of metadata and of tensors. docs/dev/formats.md
// says what is read. Source: gguf-py/gguf/constants.py and convert_hf_to_gguf.py of llama.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/gguf_architectures.h"
#include "models/gguf_layers.h"
#include "runtime/gguf.h"
#include "runtime/gguf_writer.h"

namespace shiftrt {

struct Weights;

// The config.json that the model would have as a Hugging Face directory: what llama.cpp computes from the file. The
// frequency factors in rope_freqs.weight become rope type llama3, and the two lists of factors rope type longrope.
// Throws Error naming file and key for an architecture that is not supported, a value that is missing, out of range or
// not supported, and a key of the architecture that is not known, because it might change the model.
nlohmann::json GgufConfig(const GgufContents& file);
ModelConfig LoadGgufConfig(const std::filesystem::path& file);

// The ids of the tokens that end a reply: the token that ends a text is the first, if the file names it. The others are
// those of the keys for the end of a turn and of a message, and those whose text is one that ends a reply in llama.cpp,
// because converters write no key for the end of a turn of most models.
std::vector<int64_t> GgufEndTokens(const GgufMetadata& metadata);
// True if a token with this text ends a reply without a key of its own.
bool EndsGgufReply(std::string_view text);
inline constexpr const char *kGgufEndOfText = "tokenizer.ggml.eos_token_id",
                            *kGgufEndOfTurn = "tokenizer.ggml.eot_token_id";

// The name that llama.cpp gives to the quantisation of a GGUF file, such as "Q4_K_M"; the types of the quantised
// tensors where general.file_type names none. Empty for a model without quantised tensors, and for one that is no GGUF
// file.
std::string QuantisationOf(const std::filesystem::path& model);
// The same for the files of a loaded model; those of a Hugging Face directory have names such as "GPTQ, 4 bits, groups
// of 128".
std::string QuantisationOf(const Weights& weights);
// A note for an export of a model whose numbers were decoded from quantised files; empty for another model.
std::string NoteOfQuantisation(const Weights& weights);

// Writes the metadata of an architecture that holds the model's family. `sizes`: those of each layer of the file, for
// an architecture whose layers differ; empty: all layers have the model's. Returns notes for the reader.
std::vector<std::string> AddGgufConfig(const ModelConfig& config, const GgufArchitecture& architecture,
                                       const GgufSizes& sizes, GgufWriter& file);
// The factors of frequencies that GGUF stores as tensors, by name: none for most models.
std::vector<std::pair<const char*, std::vector<float>>> GgufRopeFactors(const ModelConfig& config);
// Why llama.cpp would not compute this model from a GGUF file of this architecture; empty if it would: the settings
// that GgufConfig reads from the file that would be written are the model's. The architecture must hold the family.
std::string WhyNoGguf(const ModelConfig& config, const GgufArchitecture& architecture);

// Finds the settings of Llama 3's RoPE scaling that divide each default frequency by its factor, up to rounding. Empty
// if there are none, or if too few frequencies determine them. `factors` has head_dim / 2 elements.
std::optional<RopeSpec> FindLlama3Scaling(const std::vector<float>& factors, double theta, int64_t head_dim);

// GGUF's names of the tensors outside the blocks; GgufArchitecture::final_norm is another.
inline constexpr const char *kGgufEmbedding = "token_embd.weight", *kGgufFinalNormBias = "output_norm.bias",
                            *kGgufHead = "output.weight", *kGgufRopeFactors = "rope_freqs.weight",
                            *kGgufShortFactors = "rope_factors_short.weight",
                            *kGgufLongFactors = "rope_factors_long.weight";

}  // namespace shiftrt
