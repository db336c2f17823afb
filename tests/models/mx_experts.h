// SPDX-License-Identifier: Apache-2.0
// A small gpt-oss whose experts are in MXFP4: those of tests/goldens/mxfp4_experts.safetensors in every layer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/widen.h"
#include "runtime/json.h"
#include "tests/models/checkpoint_files.h"

namespace shiftrt {

struct MxExperts {
  static constexpr int64_t kExperts = 2, kHidden = 64, kUnits = 32;

  explicit MxExperts(const std::filesystem::path& directory, int64_t layers = 2)
      : path(directory), golden(TestDirectory() / "goldens/mxfp4_experts.safetensors") {
    nlohmann::json config = {{"architectures", {"GptOssForCausalLM"}},
                             {"hidden_size", kHidden},
                             {"intermediate_size", kUnits},
                             {"num_hidden_layers", layers},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},
                             {"head_dim", 16},
                             {"num_local_experts", kExperts},
                             {"num_experts_per_tok", 1},
                             {"vocab_size", 97},
                             {"max_position_embeddings", 256},
                             {"rope_scaling", {{"rope_type", "default"}}}};
    const std::filesystem::path shapes = directory.string() + "-shapes.json";
    WriteText(shapes, config.dump());
    WriteRandomCheckpoint(shapes, DType::kBFloat16, 3, directory);
    for (StoredTensor& tensor : ReadTensors(directory / "model.safetensors"))
      if (!tensor.name.ends_with("_proj")) tensors.push_back(std::move(tensor));
    for (const auto& [name, part] : golden.others())
      for (int64_t layer = 0; layer < layers; ++layer)
        tensors.push_back({fmt::format("model.layers.{}.mlp.experts.{}", layer, name),
                           part.type,
                           part.shape,
                           {reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size()}});
    config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
    WriteText(directory / "config.json", config.dump());
    Write();
  }
  void Write() const { WriteText(path / "model.safetensors", SafetensorsBytes(tensors)); }

  // Element (row, column) of an expert's matrix, as transformers expands it: "gate", "up" or "down".
  float Expected(const std::string& matrix, int64_t expert, int64_t row, int64_t column) const {
    const bool down = matrix == "down";
    const std::vector<float> all = Widened(golden.tensors().at(down ? "expected.down_proj" : "expected.gate_up_proj"));
    const int64_t columns = down ? kHidden : 2 * kUnits, rows = down ? kUnits : kHidden;
    const int64_t at = down ? row : 2 * row + (matrix == "up" ? 1 : 0);  // the file has (rows, columns) transposed
    return all[(expert * rows + column) * columns + at];
  }

  std::filesystem::path path;
  SafetensorsFile golden;
  std::vector<StoredTensor> tensors;
};

}  // namespace shiftrt
