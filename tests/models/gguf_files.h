// SPDX-License-Identifier: Apache-2.0
// Models as GGUF files, made from weights in memory the way llama.cpp's converter makes them.
#pragma once

#include <string>

#include "models/block_tensors.h"
#include "models/gguf.h"
#include "tests/runtime/gguf_bytes.h"

namespace shiftrt {

// The rows of float32 `data`, each `bytes` long, in the order of llama.cpp's rotary embedding, as its converter has it:
// of each head, (2, half, ...) becomes (half, 2, ...).
inline std::string Interleaved(const std::string& data, int64_t heads, int64_t head_dim, size_t bytes) {
  std::string out;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < head_dim / 2; ++i)
      for (int64_t part = 0; part < 2; ++part)
        out += data.substr((head * head_dim + part * head_dim / 2 + i) * bytes, bytes);
  return out;
}

// Metadata of `config`, an architecture that GGUF has.
inline GgufBytes GgufMetadataOf(const ModelConfig& config) {
  GgufBytes file;
  const std::string a = config.family + ".";
  const auto number = [](int64_t value) { return static_cast<uint32_t>(value); };
  file.Add("general.architecture", config.family)
      .Add(a + "context_length", number(config.max_positions))
      .Add(a + "embedding_length", number(config.hidden))
      .Add(a + "block_count", number(config.layers))
      .Add(a + "feed_forward_length", number(config.intermediate))
      .Add(a + "attention.head_count", number(config.heads))
      .Add(a + "attention.head_count_kv", number(config.kv_heads))
      .Add(a + "attention.key_length", number(config.head_dim))
      .Add(a + "attention.value_length", number(config.head_dim))
      .Add(a + "rope.freq_base", static_cast<float>(config.rope.theta))
      .Add(a + "attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_eps));
  return file;
}

// Adds the float32 tensors of `weights`, all but those whose GGUF name is `without`.
inline void AddGgufTensors(const Weights& weights, GgufBytes& file, const std::string& without = "") {
  const ModelConfig& config = weights.config;
  const auto add = [&](const std::string& name, const TensorView& tensor, int64_t interleaved_heads) {
    if (name == without) return;
    std::string bytes(static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes()));
    if (interleaved_heads > 0)
      bytes = Interleaved(bytes, interleaved_heads, config.head_dim, bytes.size() / tensor.rows());
    file.AddTensor(name, {tensor.shape.begin(), tensor.shape.end()}, 0, bytes);
  };
  add("token_embd.weight", weights.embedding, 0);
  for (size_t layer = 0; layer < weights.blocks.size(); ++layer) {
    ForEachTensor(weights.blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
      const bool queries = row.output == Axis::kQueries;
      const std::string name = GgufName(row);
      const bool rotated = config.family == "llama" && (name.starts_with("attn_q.") || name.starts_with("attn_k."));
      add(fmt::format("blk.{}.{}", layer, name), tensor, rotated ? (queries ? config.heads : config.kv_heads) : 0);
    });
  }
  add("output_norm.weight", weights.final_norm, 0);
  if (!config.tied_head) add("output.weight", weights.head, 0);
}

inline std::string GgufModel(const Weights& weights) {
  GgufBytes file = GgufMetadataOf(weights.config);
  AddGgufTensors(weights, file);
  return file.Bytes();
}

}  // namespace shiftrt
