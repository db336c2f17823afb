// SPDX-License-Identifier: Apache-2.0
// Fuzzes the journal of an evaluation: the first lines of the bytes as the whole file, and then each line of them as
// the text of a line whose checksum is right. The result must be an error or scores and replies, and bad lines by name.
#include <cstdint>

#include "eval/journal.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

void Use(const std::filesystem::path& file) {
  Try([&] {
    Journal journal(file);
    journal.Find("piqa", 0);
    journal.Add("piqa", 1, {});
    journal.FindReply("gsm8k");
    journal.AddReply("gsm8k", {1, 2});
  });
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "journal";
  const std::string_view bytes = shiftrt::FirstLines({reinterpret_cast<const char*>(data), size});
  shiftrt::WriteText(file, bytes);
  shiftrt::Use(file);
  shiftrt::WriteCheckedLines(file, bytes);
  shiftrt::Use(file);
  return 0;
}
