// SPDX-License-Identifier: Apache-2.0
// The table of llama.cpp's architectures: which of the families a GGUF file of each holds, and in what its files differ
// from those of the others. Sources: src/llama-arch.cpp, src/llama-model.cpp and src/models of llama.cpp, and the
// directory conversion next to convert_hf_to_gguf.py.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/families.h"
#include "runtime/check.h"
#include "runtime/gguf.h"

namespace shiftrt {

// A number of the metadata, the setting of config.json that it stands for, and the model's value. 0: not written.
struct GgufNumber {
  const char *key, *setting;
  double (*value)(const ModelConfig& config);
  bool required = false;
};

// The number of blocks that predict several tokens, which block_count counts too.
inline constexpr const char* kGgufPredictionLayers = "nextn_predict_layers";
inline constexpr const char* kGgufFinalNorm = "output_norm.weight";  // most architectures have it

// The family that a file with experts is read as, and the settings of its config.json.
struct GgufMixture {
  const char* family = nullptr;   // Family::architecture; null: no file has experts
  const char* experts = nullptr;  // the key of the number of experts
  const char* units = nullptr;    // the key of the units of an expert; null: the size of the MLP
  // The key that says whether the weights of the active experts are divided by their sum; null: they are.
  const char* normalise = nullptr;
  bool normalised = true;        // llama.cpp divides them
  const char* shared = nullptr;  // the key of the units of a shared expert; null: there is none
};

struct GgufArchitecture {
  enum class Head : uint8_t { kAny, kTied, kOwn };

  const char* name;                   // general.architecture, and the prefix of its keys
  std::vector<const char*> families;  // Family::architecture; a file without windows is read as the first
  const char* windowed = nullptr;     // the family that a file with windows is read as; null: the first too
  GgufMixture mixture = {};           // for files with experts, in which each block has a mixture
  const char* activation = "silu";
  bool layer_norm = false;  // the epsilon is that of LayerNorm
  bool neighbours = false;  // the rotary embedding of llama.cpp turns pairs of neighbours
  bool partial = false;     // it may turn a part of each head
  bool square = false;      // all heads together have the size of the stream
  bool rope_factors = false;
  bool yarn = true;
  bool exact_yarn = false;  // the models do not round the limits of YaRN's ramp (RopeSpec::truncate); llama.cpp does
  bool longrope = false;
  bool query_scale = false;  // queries are scaled by their position, and YaRN has a logarithmic multiplier
  bool rope_switch = false;  // rope.scaling.finetuned says whether there is a rotary embedding
  const char* bias = "attention_bias";
  bool qkv_bias = true, output_bias = false, mlp_bias = false;  // tensors that llama.cpp reads
  bool needs_bias = false;                                      // it has no model without those of the attention
  Head head = Head::kAny;
  // The last one of so many layers has no window, unless the file lists the layers. 0: no layer has one.
  int64_t full_every = 0;
  bool always_windows = false;  // without the key, llama.cpp has no model or a window of its own
  int64_t windows_at = 0;       // llama.cpp has windows in models of so many layers only; 0: in all
  double sliding_theta = 0;     // the base of sliding layers where the file has none; 0: that of the others
  int64_t large_at = 0;         // Gemma: with so many layers, the scores are scaled by the size of the stream
  // The heads and the size of the MLP are lists with one number per layer (models/gguf_layers.h).
  bool by_layer = false;
  bool gated_delta = false;  // layers have gated delta networks, and attention has gates
  // Layers without key-value heads, which are listed, have short convolutions.
  bool short_convolution = false;
  int64_t most_layers = 0;  // llama.cpp expects other tensors in deeper models; 0: no such limit
  std::vector<GgufNumber> numbers = {};
  std::vector<TensorPlace> places = {};
  const char* final_norm = kGgufFinalNorm;
  const char* settings = "{}";  // what the config.json of each file has besides, as JSON
};

// Null if there is none of this name, or none that holds the family.
const GgufArchitecture* FindGgufArchitecture(std::string_view name);
const GgufArchitecture* GgufArchitectureOf(const ModelConfig& config);
// GGUF's name of a tensor of a block, after "blk.N.", such as "attn_q.weight", where an architecture has no other. The
// numbers of all blocks (BlockTensor::IsNumber()) are a list of the metadata with this key.
const char* GgufName(const BlockTensor& tensor);
// "llama, qwen2, ..."
std::string KnownGgufArchitectures();

// Files of gated delta networks have -exp(A_log) in the place of A_log.
float DecayInGguf(float a_log);
float DecayFromGguf(float decay);

// The tensors of a block under GGUF's names, after "blk.N.". Throws Error naming a tensor that the architecture lacks.
std::vector<CheckpointTensor> GgufTensorsOf(const GgufArchitecture& architecture, const ModelConfig& config);

}  // namespace shiftrt
