// SPDX-License-Identifier: Apache-2.0
// Fuzzes a LoRA adapter of PEFT: adapter_config.json if the input begins with a brace, otherwise the safetensors file.
// The result must be an error or factors of the shapes of the model, which can be merged.
#include <cstdint>

#include "models/lora.h"
#include "runtime/files.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace shiftrt {
namespace {

// The model, its adapter, and how the adapter is read.
class Adapter : public SmallModel {
 public:
  Adapter() : weights_(LoadWeights(path())) {
    WriteAdapter(path());
    config_ = ReadFile(path() / kLoraConfig);
    tensors_ = ReadFile(path() / kLoraTensors);
  }

  // Restores both files. WriteAdapter() would wait for the disk.
  void Reset() const {
    WriteText(path() / kLoraConfig, config_);
    WriteText(path() / kLoraTensors, tensors_);
  }

  void Use() const {
    const DepthPlan plan = DepthPlan::Original(weights_->config.layers);
    MergeLora(*weights_, plan, ReadLora(path(), *weights_, plan));
  }

 private:
  std::shared_ptr<const Weights> weights_;
  std::string config_, tensors_;
};

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::Adapter adapter;
  const bool config = size > 0 && data[0] == '{';
  shiftrt::WriteText(adapter.path() / (config ? shiftrt::kLoraConfig : shiftrt::kLoraTensors),
                     {reinterpret_cast<const char*>(data), size});
  shiftrt::Try([] { adapter.Use(); });
  adapter.Reset();
  return 0;
}
