// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json of a directory of the format hf-lra with valid weights and adapters. The result must be an error
// or a plan that matches them.
#include <cstdint>

#include "models/adapted.h"
#include "models/hf_lra.h"
#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

constexpr int64_t kHidden = 8;
constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 4,
  "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 16})";

// A model of two blocks in one shard, and in another one a low-rank adapter before the first block and a full one
// behind the second.
class Exported {
 public:
  Exported() {
    WriteText(path() / "shape.json", kConfig);
    WriteRandomCheckpoint(path() / "shape.json", DType::kFloat32, 1, path());
    const std::vector<float> values(kHidden * kHidden);
    const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
      return NamedTensor{name, {values.data(), DType::kFloat32, std::move(shape)}};
    };
    const SafetensorsFile model(path() / "model.safetensors");
    std::vector<NamedTensor> tensors = {tensor("model.layers.0.adapters_before.0.down.weight", {2, kHidden}),
                                        tensor("model.layers.0.adapters_before.0.up.weight", {kHidden, 2}),
                                        tensor("model.layers.0.adapters_before.0.up.bias", {kHidden}),
                                        tensor("model.layers.1.adapters_after.0.linear.weight", {kHidden, kHidden}),
                                        tensor("model.layers.1.adapters_after.0.linear.bias", {kHidden})};
    for (const auto& [name, view] : model.tensors()) tensors.push_back({name, view});
    WriteSafetensors(path() / "with_adapters", tensors, {{"format", "pt"}});
    std::filesystem::rename(path() / "with_adapters", path() / "model.safetensors");
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::Exported exported;
  shiftrt::WriteText(exported.path() / "config.json", {reinterpret_cast<const char*>(data), size});
  try {
    if (shiftrt::IsHfLra(exported.path())) shiftrt::OpenHfLra(exported.path(), {});
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
