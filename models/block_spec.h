// SPDX-License-Identifier: Apache-2.0
// The structure of a model's blocks, beyond the sizes: where they have norms and biases, their activation, their
// windows and caps. A family (models/families.cc) fills a BlockSpec from a config.json. The implementations of a block
// read it and have no branch on a family's name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/activation.h"
#include "runtime/gated_delta_shape.h"

namespace shiftrt {

// The rotary embedding of a layer: ModelConfig::rope, ModelConfig::second_rope, or none.
enum class RopeChoice : uint8_t { kFirst, kSecond, kNone };

// A mixture of experts in the place of an MLP: y = the sum over the `active` experts e with the largest p of w_e
// mlp_e(x), with p = softmax(router x) in float32 and w_e = p_e, or p_e divided by the sum of p over the active
// experts. Each expert is a gated MLP of its own. A shared expert is one that all tokens run through: it adds
// sigmoid(v x) mlp(x), where v is a row. Sources: Jiang et al. 2024, "Mixtral of Experts", section 2.1; transformers,
// modeling_qwen3_moe.py and modeling_qwen2_moe.py. A router with a bias has softmax(router x + bias).
struct MixtureSpec {
  int64_t experts = 0, active = 0;
  int64_t units = 0;              // the width of each expert
  int64_t shared_units = 0;       // the width of the shared expert; 0: there is none
  bool normalised = false;        // the weights of the active experts add up to 1
  std::vector<bool> layers = {};  // true for the layers that have one; empty: no layer has one

  bool In(int64_t layer) const { return !layers.empty() && layers[layer]; }
};

// The part of a layer that mixes the tokens of a sequence, which the first half of its block runs.
enum class Mixer : uint8_t { kAttention, kGatedDelta, kShortConvolution };
// "attention", "a gated delta network" or "a short convolution".
inline const char* Name(Mixer mixer) {
  return mixer == Mixer::kAttention    ? "attention"
         : mixer == Mixer::kGatedDelta ? "a gated delta network"
                                       : "a short convolution";
}

struct BlockSpec {
  // The mixer of each layer; empty: attention in all. The flags say which of them the layers have.
  std::vector<Mixer> mixers;
  bool attention = true, gated_delta = false, short_convolution = false;
  GatedDeltaShape delta;         // the sizes of all gated delta networks
  ConvolutionShape convolution;  // those of all short convolutions
  // q_proj has a gate below each head's queries, and the head's output is multiplied by the gate's sigmoid.
  bool attention_gate = false;

  bool input_norms = true;     // each half begins with a norm of the stream of its own
  bool update_norms = false;   // each half norms its update before adding it
  bool qk_norm = false;        // norms of queries and keys before the rotation: of each head, or
  bool qk_norm_whole = false;  // one norm for all heads of a token together
  bool qk_norm_after_rotation = false;
  float norm_offset = 0;    // added to the weights of all norms, the model's last one included
  bool layer_norm = false;  // all norms are LayerNorm (kernels/layernorm.h); false: RMSNorm
  bool norm_bias = false;   // with layer_norm: norms of the stream have a bias, the model's last one included
  // Attention and MLP of a whole block read the same stream, and both updates are added to it. False: the MLP reads
  // the stream with the attention's update.
  bool parallel = false;
  bool shared_norm = false;  // both halves of a parallel block read the stream through one norm

  bool qkv_bias = false;
  bool output_bias = false;  // o_proj
  bool mlp_bias = false;
  bool gated = true;  // the MLP is down(activation(gate(x)) * up(x)); false: down(activation(up(x)))
  Activation activation = Activation::kSilu;
  bool xielu = false;     // without gate: the activation, with numbers of each layer (kernels/xielu.h)
  ClampedSwiGlu clamped;  // with a limit: the unit of the MLP, in the place of activation(gate(x)) * up(x)
  // The kinds of MLP that the blocks have. Of a model, both may be true, and ConfigOfBlock() says which a block has.
  bool dense = true;           // one MLP for all tokens
  bool mixed = false;          // a mixture of experts
  bool shared_expert = false;  // each mixture has a shared expert
  bool expert_bias = false;    // the router and the matrices of the experts have biases
  MixtureSpec mixture = {};

  float attention_scale = 0;     // multiplies the scores: 1 / sqrt(head_dim) in most families
  float attention_cap = 0;       // soft cap of the scores; 0: none
  bool attention_sinks = false;  // the denominator of each head's softmax has a learned term (kernels/attention.h)
  // windows[layer] is the number of keys that a query sees, its own included; 0: all of them. Empty if no layer has a
  // window.
  std::vector<int64_t> windows;

  // ropes[layer] is the rotary embedding of a layer. Empty if all layers have the first.
  std::vector<RopeChoice> ropes;
  float residual_multiplier = 1;  // multiplies the update of each half

  // Computations before the first block and after the last.
  bool scaled_embeddings = false;  // times sqrt(hidden): Weights::EmbeddingScale()
  float embedding_multiplier = 1;  // multiplies embeddings that are not scaled by sqrt(hidden)
  float logit_scale = 1;           // multiplies the logits
  float logit_cap = 0;             // soft cap of the scaled logits; 0: none

  // True if a half adds the output of its last projection to the stream as it is.
  bool PlainUpdates() const { return !update_norms && residual_multiplier == 1; }
  Mixer MixerOf(int64_t layer) const { return mixers.empty() ? Mixer::kAttention : mixers[layer]; }
  void SetMixers(std::vector<Mixer> of_layers) {
    mixers = std::move(of_layers);
    const auto any = [&](Mixer mixer) { return std::find(mixers.begin(), mixers.end(), mixer) != mixers.end(); };
    attention = any(Mixer::kAttention);
    gated_delta = any(Mixer::kGatedDelta);
    short_convolution = any(Mixer::kShortConvolution);
  }
  // True if some layers go on from a state and not from keys and values: the sizes of that of one layer.
  bool Recurrent() const { return gated_delta || short_convolution; }
  int64_t StateFloats() const { return gated_delta ? delta.state_floats() : 0; }
  int64_t RowFloats() const {
    return std::max(gated_delta ? delta.row_floats() : 0, short_convolution ? convolution.row_floats() : 0);
  }
  RopeChoice Rope(int64_t layer) const { return ropes.empty() ? RopeChoice::kFirst : ropes[layer]; }
  int64_t Window(int64_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool AnyWindow() const {
    return std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  }
};

}  // namespace shiftrt
