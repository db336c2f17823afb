// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json. The result must be an error or a usable configuration.
#include <cstdint>

#include "models/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const shiftrt::ModelConfig config = shiftrt::ParseConfig({reinterpret_cast<const char*>(data), size}, "input");
    shiftrt::MakeRopeFrequencies(config);
    if (config.layers < 100) shiftrt::TensorShapes(config);
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
