// SPDX-License-Identifier: Apache-2.0
// Fuzzes GGUF files. For any bytes, the container, the configuration, the tokenizer and the weights must each be an
// error or usable.
#include <cstdint>

#include "models/gguf.h"
#include "models/weights.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"
#include "tokenizers/gguf.h"

namespace shiftrt {
namespace {

void ReadAll(const std::filesystem::path& path) {
  Try([&] {
    const GgufFile file(path);
    volatile uint8_t sum = 0;
    for (const auto& [name, tensor] : file.tensors())
      for (int64_t i = 0; i < tensor.bytes; ++i) sum = sum + static_cast<uint8_t>(tensor.data[i]);
    Try([&] { GgufChatTemplate(file); });
    Try([&] { GgufTokenizerFiles(file); });
    Try([&] { LoadGgufTokenizer(file)->Encode("It's 12 o'clock,\n <|end|> caf\xC3\xA9."); });
    Try([&] { MakeRopeFrequencies(LoadGgufConfig(path)); });
  });
  Try([&] { LoadWeights(path, {.dtype = WeightType::kFloat32})->Fingerprint(); });
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  shiftrt::WriteText(directory.path() / "model.gguf", {reinterpret_cast<const char*>(data), size});
  shiftrt::ReadAll(directory.path() / "model.gguf");
  return 0;
}
