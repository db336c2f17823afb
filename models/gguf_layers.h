// SPDX-License-Identifier: Apache-2.0
// GGUF files whose layers differ: llama.cpp's architecture deci. A layer may lack its attention (no heads), or have one
// matrix on the normed stream in its place (heads, but none for keys and values): h += W norm(h). llama.cpp skips a
// layer without MLP as a whole, so that a layer whose MLP is missing gets a small one of zeros, whose bias may be that
// of an adapter. Source: src/models/deci.cpp of llama.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "models/plan.h"
#include "runtime/gguf.h"

namespace shiftrt {

struct GgufArchitecture;
struct Model;

// The units of an MLP that stands for none: whole blocks of the quantised types that have 32 elements.
inline constexpr int64_t kNoMlpUnits = 32;

// The sizes of the layers of a file.
struct GgufSizes {
  std::vector<int32_t> heads, kv_heads, intermediate;

  void Add(int64_t layer_heads, int64_t layer_kv_heads, int64_t units) {
    heads.push_back(static_cast<int32_t>(layer_heads));
    kv_heads.push_back(static_cast<int32_t>(layer_kv_heads));
    intermediate.push_back(static_cast<int32_t>(units));
  }
};

// The layers of such a file.
struct GgufLayers {
  struct Layer {
    bool linear = false;                  // one matrix in the place of the attention
    bool attention = false, mlp = false;  // the halves of a block that run
    int64_t units = 0;                    // the units of the MLP, which may add nothing
    bool block() const { return attention || mlp; }
  };
  std::vector<Layer> layers = {};
  int64_t heads = 0, kv_heads = 0;  // those of all attentions that run
  int64_t intermediate = 0;         // the most units of a layer

  int64_t blocks() const;                    // how many layers are blocks, or halves of one
  std::vector<int64_t> BlockLayers() const;  // their numbers
  std::vector<Halves> BlockHalves() const;   // what runs of them
  std::vector<int64_t> BlockUnits() const;   // the units of their MLPs
  // The name of a tensor of the first layer that runs its attention, or its MLP.
  std::string Attention(const char* tensor) const;
  std::string Mlp(const char* tensor) const;
  // The names of the tensors that are no block's: matrices of linear layers, and MLPs that add nothing.
  std::set<std::string, std::less<>> OtherTensors() const;
  // The class of the family that has the biases of the file's attentions.
  const char* Family(const GgufContents& file) const;
};

// An MLP is one that adds nothing if all numbers of its down projection are zero and another layer has more units.
// Throws Error naming the file and the key for layers that llama.cpp skips, for attentions of several sizes, and for a
// file of which no layer has an attention.
GgufLayers ReadGgufLayers(const GgufContents& file, const GgufArchitecture& architecture);

// True if the layers of the file may differ.
bool IsGgufOfLayers(const GgufContents& file);
// The plan of a file whose layers differ, over the blocks that it has: which halves run, and the adapters between them.
// The parts that an adapter replaces, and the layers of the original that are missing, are what the file says of them
// (kGgufAdapters, kGgufRemoved), or else the adapter's layer in the file.
void ReadGgufPlan(const GgufContents& file, Model& model);
// The layers of an original model, in words: "4", "7.mlp", with spaces between several.
inline constexpr const char *kGgufAdapters = "shiftrt.adapters",  // a text for each adapter: what it replaces
    *kGgufRemoved = "shiftrt.removed",                            // layers of the original that are missing
        *kGgufProvenance = "shiftrt.provenance";                  // JSON, as hf-lra has it

}  // namespace shiftrt
