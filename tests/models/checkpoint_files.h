// SPDX-License-Identifier: Apache-2.0
// Checkpoints for tests, tensor by tensor, so that each can be spoilt on its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/safetensors.h"
#include "tests/models/fixtures.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {

inline std::string SmallConfig(bool tied = false, const std::string& dtype = "float32") {
  return fmt::format(R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": {}, "torch_dtype": "{}"}})",
                     tied, dtype);
}

// A safetensors type as the header spells it, with its bytes.
struct StoredTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  template <typename T>
  void Set(size_t index, T value) {
    std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
  }
};

inline std::vector<StoredTensor> ReadTensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::vector<StoredTensor> tensors;
  for (const auto& [name, t] : file.tensors()) {
    const char* dtype = t.dtype == DType::kFloat32 ? "F32" : t.dtype == DType::kFloat16 ? "F16" : "BF16";
    tensors.push_back({name, dtype, t.shape, {static_cast<const char*>(t.data), static_cast<size_t>(t.bytes())}});
  }
  for (const auto& [name, t] : file.others())
    tensors.push_back({name, t.type, t.shape, {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}});
  return tensors;
}

// Written here and not by the runtime's writer, which would refuse or repair much of what the tests need. `padding`
// spaces end the header: with them the data starts where it likes.
inline std::string SafetensorsBytes(const std::vector<StoredTensor>& tensors, size_t padding = 0) {
  std::string header = "{", data;
  for (const StoredTensor& t : tensors) {
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.size() > 1 ? "," : "",
                    t.name, t.dtype, fmt::join(t.shape, ","), data.size(), data.size() + t.bytes.size());
    data += t.bytes;
  }
  header += "}" + std::string(padding, ' ');
  const auto size = static_cast<uint64_t>(header.size());
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data;
}

}  // namespace shiftrt
