// SPDX-License-Identifier: Apache-2.0
// A plan as a Llama of whole layers that are alike, which programs run that know neither adapters nor half blocks.
// `shiftrt export --format hf` writes it: a Hugging Face checkpoint of LlamaForCausalLM whose config.json has the mark
// of models/hf_lra.h. A layer is an attention and an MLP. The attention of a layer that has none, and an MLP that is
// none, are zeros. An adapter h + norm(h) A + b is an MLP whose gate is constant, so that
// down (silu(gate) * up x) is linear in x:
//   gate.weight = 0, gate.bias = 32, up.weight = P' / 32, down.weight = Q', down.bias = b,  A = P Q
// In every type of numbers, silu(32) is 32. A full adapter has the identity for P. Units that an MLP lacks are zeros.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/plan.h"

namespace shiftrt {

inline constexpr float kConstantGate = 32;

// A layer with its two places, each of which holds a block, an adapter or, with -1, nothing.
struct LlamaLayer {
  int64_t attention = -1, mlp = -1;  // the block, counted among those of the plan
  int64_t adapter = -1;              // the adapter in the MLP's place, counted among those of the plan
};
// The layers of a plan, of which the kinds of the stages, the halves and the order count. An attention takes a layer
// together with what follows it.
std::vector<LlamaLayer> LlamaLayersOf(const DepthPlan& plan);

// The half of a block of a Llama, Mistral or Qwen 2 that a tensor belongs to, by its name in a layer.
inline constexpr const char *kLlamaAttentionNorm = "input_layernorm.weight",
                            *kLlamaMlpNorm = "post_attention_layernorm.weight";
inline constexpr const char* kLlamaProjections[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
inline constexpr const char* kLlamaMatrices[] = {"gate_proj", "up_proj", "down_proj"};
std::string LlamaLayerPrefix(int64_t layer);  // "model.layers.3."

}  // namespace shiftrt
