// SPDX-License-Identifier: Apache-2.0
// Fuzzes shiftrt.json with valid weights and adapters. The result must be an error or a plan that matches them.
#include <cstdint>

#include "models/adapted.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace shiftrt {
namespace {

// Adapters for two sites, the first of rank 2, the second of full rank; two tensors of the plan's own, and LoRA factors
// for the second layer.
class SavedModel : public SmallModel {
 public:
  SavedModel() : fingerprint_(LoadWeights(path())->Fingerprint()) {
    WriteSafetensors(path() / "adapters.safetensors",
                     {Tensor("site.0.P", {kHidden, 2}), Tensor("site.0.Q", {2, kHidden}), Tensor("site.0.b", {kHidden}),
                      Tensor("site.1.A", {kHidden, kHidden}), Tensor("site.1.b", {kHidden})});
    WriteSafetensors(path() / "own.safetensors", {Tensor("model.layers.0.mlp.down_proj.weight", {kHidden, 4}),
                                                  Tensor("lm_head.weight", {8, kHidden})});
    std::filesystem::create_directory(path() / "lora");
    WriteAdapter(path() / "lora");
  }
  const std::string& fingerprint() const { return fingerprint_; }

 private:
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
  shiftrt::Try([] { shiftrt::OpenAdapted(saved.path(), {}); });
  return 0;
}
