// SPDX-License-Identifier: Apache-2.0
// A small Llama with one quantised matrix, made of the files of tests/goldens/make_quantised.py.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/json.h"
#include "tests/models/checkpoint_files.h"

namespace shiftrt {

class QuantisedCheckpoint {
 public:
  static constexpr int64_t kRows = 16, kColumns = 64;  // the sides of the matrix
  static constexpr const char* kModule = "model.layers.0.mlp.up_proj";

  // The matrix is that of the file NAME.safetensors.
  explicit QuantisedCheckpoint(const std::string& name) {
    const std::filesystem::path file = TestDirectory() / "goldens/quantised" / (name + ".safetensors");
    std::vector<StoredTensor> parts = ReadTensors(file);
    const auto at = std::ranges::find(parts, "expected", &StoredTensor::name);
    expected = std::move(*at);
    parts.erase(at);
    WriteText(path() / "shape.json", Config().dump());
    // Matrices expand to the type of the embedding table.
    WriteRandomCheckpoint(path() / "shape.json", expected.dtype == "F16" ? DType::kFloat16 : DType::kBFloat16, 3,
                          path());
    tensors = ReadTensors(path() / "model.safetensors");
    Drop(".weight");
    for (StoredTensor& part : parts) {
      part.name = kModule + part.name.substr(part.name.find('.'));
      tensors.push_back(std::move(part));
    }
    settings = nlohmann::json::parse(SafetensorsFile(file).metadata().at("golden")).at("quantization_config");
  }

  const std::filesystem::path& path() const { return directory_.path(); }
  bool Has(const std::string& suffix) { return Find(suffix) != tensors.end(); }
  // A tensor of the matrix.
  StoredTensor& Part(const std::string& suffix) { return *Find(suffix); }
  void Drop(const std::string& suffix) { tensors.erase(Find(suffix)); }
  void Write() const {
    nlohmann::json config = Config();
    if (!settings.is_null()) config["quantization_config"] = settings;
    WriteText(path() / "config.json", config.dump());
    WriteText(path() / "model.safetensors", SafetensorsBytes(tensors));
  }

  std::vector<StoredTensor> tensors;
  StoredTensor expected;    // the matrix, expanded by the reference
  nlohmann::json settings;  // quantization_config

 private:
  static nlohmann::json Config() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"hidden_size", kColumns},
            {"intermediate_size", kRows},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 4},
            {"vocab_size", 24},
            {"max_position_embeddings", 64},
            {"torch_dtype", "bfloat16"}};
  }
  std::vector<StoredTensor>::iterator Find(const std::string& suffix) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const StoredTensor& t) { return t.name == kModule + suffix; });
  }

  TemporaryDirectory directory_;
};

}  // namespace shiftrt
