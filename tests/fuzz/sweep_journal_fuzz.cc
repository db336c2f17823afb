// SPDX-License-Identifier: Apache-2.0
// Fuzzes the journal of a sweep: the first lines of the bytes as the whole file, and then each line of them as the text
// of a line whose checksum is right. The result must be cells, and bad lines by name.
#include <cstdint>

#include "api/sweep_journal.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "journal";
  const std::string_view bytes = shiftrt::FirstLines({reinterpret_cast<const char*>(data), size});
  shiftrt::WriteText(file, bytes);
  shiftrt::SweepJournal(file, "key");
  shiftrt::WriteCheckedLines(file, bytes);
  const shiftrt::SweepJournal journal(file, "key");
  const int64_t lines = std::count(bytes.begin(), bytes.end(), '\n') + 1;
  if (journal.cells() + std::ssize(journal.bad()) > lines) __builtin_trap();
  return 0;
}
