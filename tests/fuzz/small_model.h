// SPDX-License-Identifier: Apache-2.0
// The model next to which fuzz targets write the files of adapters and of saved models.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "models/lora.h"
#include "models/weights.h"
#include "runtime/safetensors.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {

// A directory with the weights of a Llama of two layers. The target adds the files that it fuzzes.
class SmallModel {
 public:
  static constexpr int64_t kHidden = 8;

  SmallModel() {
    WriteText(path() / "shape.json",
              R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 4, "vocab_size": 8,
                  "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16})");
    WriteRandomCheckpoint(path() / "shape.json", DType::kFloat32, 1, path());
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  // A tensor of ones with at most kHidden * kHidden elements.
  static NamedTensor Tensor(std::string name, std::vector<int64_t> shape) {
    static const std::vector<float> ones(kHidden * kHidden, 1);
    return {std::move(name), {ones.data(), DType::kFloat32, std::move(shape)}};
  }
  // LoRA factors of rank 1 for the queries of the second layer, in the files of PEFT.
  static void WriteAdapter(const std::filesystem::path& directory) {
    const std::string factors = "base_model.model.model.layers.1.self_attn.q_proj.lora_";
    WriteSafetensors(directory / kLoraTensors,
                     {Tensor(factors + "A.weight", {1, kHidden}), Tensor(factors + "B.weight", {kHidden, 1})});
    WriteText(directory / kLoraConfig, R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})");
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace shiftrt
