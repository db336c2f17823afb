// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json of a directory of the format hf-lra with valid weights and adapters. The result must be an error
// or a plan that matches them.
#include <cstdint>

#include "models/adapted.h"
#include "models/hf_lra.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace shiftrt {
namespace {

// A model of two blocks in one shard, with a low-rank adapter before the first block and a full one after the second.
class Exported : public SmallModel {
 public:
  Exported() {
    const std::filesystem::path file = path() / "model.safetensors", with_adapters = path() / "with_adapters";
    std::vector<NamedTensor> tensors = {Tensor("model.layers.0.adapters_before.0.down.weight", {2, kHidden}),
                                        Tensor("model.layers.0.adapters_before.0.up.weight", {kHidden, 2}),
                                        Tensor("model.layers.0.adapters_before.0.up.bias", {kHidden}),
                                        Tensor("model.layers.1.adapters_after.0.linear.weight", {kHidden, kHidden}),
                                        Tensor("model.layers.1.adapters_after.0.linear.bias", {kHidden})};
    const SafetensorsFile model(file);
    for (const auto& [name, view] : model.tensors()) tensors.push_back({name, view});
    WriteSafetensors(with_adapters, tensors, {{"format", "pt"}});
    std::filesystem::rename(with_adapters, file);
  }
};

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::Exported exported;
  shiftrt::WriteText(exported.path() / "config.json", {reinterpret_cast<const char*>(data), size});
  shiftrt::Try([] {
    if (shiftrt::IsHfLra(exported.path())) shiftrt::OpenHfLra(exported.path(), {});
  });
  return 0;
}
