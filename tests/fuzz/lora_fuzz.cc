// SPDX-License-Identifier: Apache-2.0
// Fuzzes a LoRA adapter of PEFT: adapter_config.json if the input begins with a brace, otherwise the safetensors file.
// The result must be an error or factors of the shapes of the model, which can be merged.
#include <cstdint>

#include "models/config.h"
#include "models/lora.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

constexpr int64_t kHidden = 8;
constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 4,
  "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 16})";
constexpr const char* kAdapterConfig = R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})";

// A model of two layers beside an adapter for the second.
class Adapter {
 public:
  Adapter() {
    WriteText(path() / "shape.json", kConfig);
    WriteRandomCheckpoint(path() / "shape.json", DType::kFloat32, 1, path());
    weights_ = LoadWeights(path());
    Reset();
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  void Reset() const {
    const std::vector<float> ones(kHidden, 1);
    const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
      return NamedTensor{name, {ones.data(), DType::kFloat32, std::move(shape)}};
    };
    const std::string factors = "base_model.model.model.layers.1.self_attn.q_proj.lora_";
    WriteSafetensors(path() / kLoraTensors, {tensor((factors + "A.weight").c_str(), {1, kHidden}),
                                             tensor((factors + "B.weight").c_str(), {kHidden, 1})});
    WriteText(path() / kLoraConfig, kAdapterConfig);
  }

  void Use() const {
    const DepthPlan plan = DepthPlan::Original(weights_->config.layers);
    MergeLora(*weights_, plan, ReadLora(path(), weights_->config, plan));
  }

 private:
  TemporaryDirectory directory_;
  std::shared_ptr<const Weights> weights_;
};

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::Adapter adapter;
  const bool config = size > 0 && data[0] == '{';
  shiftrt::WriteText(adapter.path() / (config ? shiftrt::kLoraConfig : shiftrt::kLoraTensors),
                     {reinterpret_cast<const char*>(data), size});
  try {
    adapter.Use();
  } catch (const shiftrt::Error&) {
  }
  adapter.Reset();
  return 0;
}
