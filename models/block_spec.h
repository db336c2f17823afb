// SPDX-License-Identifier: Apache-2.0
// The structure of a model's blocks, beyond the sizes: where they have norms and biases, their activation, their
// windows and caps. A family (models/families.cc) fills a BlockSpec from a config.json. The implementations of a block
// read it and have no branch on a family's name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shiftrt {

enum class Activation : uint8_t { kSilu, kGeluTanh };  // applied to the gate

struct BlockSpec {
  // Each half of a block begins with a norm of the stream.
  bool update_norms = false;  // each half also norms its update before adding it
  bool qk_norm = false;       // norms of the heads of queries and keys
  float norm_offset = 0;      // added to the weights of all norms, the model's last one included

  bool qkv_bias = false;
  bool output_bias = false;  // o_proj
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;

  float attention_scale = 0;  // multiplies the scores: 1 / sqrt(head_dim) in most families
  float attention_cap = 0;    // soft cap of the scores; 0: none
  // windows[layer] is the number of keys that a query sees, its own included; 0: all of them. Empty if no layer has a
  // window.
  std::vector<int64_t> windows;

  // Computations before the first block and after the last.
  bool scaled_embeddings = false;  // times sqrt(hidden): Weights::EmbeddingScale()
  float logit_cap = 0;             // soft cap of the logits; 0: none

  int64_t Window(int64_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool AnyWindow() const {
    return std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
  }
};

}  // namespace shiftrt
