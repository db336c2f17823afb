// SPDX-License-Identifier: Apache-2.0
// Fuzzes shiftrt.json with valid weights and adapters. The result must be an error or a plan that matches them.
#include <cstdint>

#include "models/adapted.h"
#include "runtime/files.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

constexpr int64_t kHidden = 8;
constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 4,
  "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 16})";

// A model of two layers; adapters for two sites, the first of rank 2, the second of full rank; two tensors of the
// plan's own, and LoRA factors for the second layer.
class SavedModel {
 public:
  SavedModel() {
    WriteText(path() / "shape.json", kConfig);
    WriteRandomCheckpoint(path() / "shape.json", DType::kFloat32, 1, path());
    const std::vector<float> zeros(kHidden * kHidden);
    const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
      return NamedTensor{name, {zeros.data(), DType::kFloat32, std::move(shape)}};
    };
    WriteSafetensors(path() / "adapters.safetensors",
                     {tensor("site.0.P", {kHidden, 2}), tensor("site.0.Q", {2, kHidden}), tensor("site.0.b", {kHidden}),
                      tensor("site.1.A", {kHidden, kHidden}), tensor("site.1.b", {kHidden})});
    WriteSafetensors(path() / "own.safetensors", {tensor("model.layers.0.mlp.down_proj.weight", {kHidden, 4}),
                                                  tensor("lm_head.weight", {8, kHidden})});
    std::filesystem::create_directory(path() / "lora");
    const std::string factors = "base_model.model.model.layers.1.self_attn.q_proj.lora_";
    WriteSafetensors(path() / "lora/adapter_model.safetensors", {tensor((factors + "A.weight").c_str(), {1, kHidden}),
                                                                 tensor((factors + "B.weight").c_str(), {kHidden, 1})});
    WriteText(path() / "lora/adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})");
    fingerprint_ = LoadWeights(path())->Fingerprint();
  }
  const std::filesystem::path& path() const { return directory_.path(); }
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  TemporaryDirectory directory_;
  std::string fingerprint_;
};

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::SavedModel saved;
  std::string text(reinterpret_cast<const char*>(data), size);
  const std::string place = "FINGERPRINT";  // the corpus has this word in place of the model's fingerprint
  if (const size_t at = text.find(place); at != text.npos) text.replace(at, place.size(), saved.fingerprint());
  shiftrt::WriteText(saved.path() / shiftrt::kAdaptedFile, text);
  try {
    shiftrt::OpenAdapted(saved.path(), {});
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
