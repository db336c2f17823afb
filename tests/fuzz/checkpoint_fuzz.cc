// SPDX-License-Identifier: Apache-2.0
// Fuzzes the file from which a training continues. The result must be an error or a state of the expected size.
#include <cstdint>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"
#include "train/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kNumbers = 6;
  static const shiftrt::TemporaryDirectory directory;
  static const shiftrt::CheckpointFile file(directory.path() / "training", {{"method", "lora"}, {"seed", "0"}});
  shiftrt::WriteText(file.path(), {reinterpret_cast<const char*>(data), size});
  try {
    const auto state = file.Read(kNumbers);
    for (const auto* numbers : {&state->values, &state->first, &state->second})
      if (numbers->size() != static_cast<size_t>(kNumbers)) __builtin_trap();
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
