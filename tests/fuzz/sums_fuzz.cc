// SPDX-License-Identifier: Apache-2.0
// Fuzzes the files of run --save-gram. The result must be an error or sums that can be written and read again.
#include <cstdint>

#include "runtime/check.h"
#include "shift/sums/gram_file.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "sums", again = directory.path() / "again";
  shiftrt::WriteText(file, {reinterpret_cast<const char*>(data), size});
  try {
    const shiftrt::SavedSums sums = shiftrt::ReadSums(file);
    shiftrt::WriteSums(again, sums);
    if (shiftrt::ReadSums(again).origin.model != sums.origin.model) __builtin_trap();
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
