// SPDX-License-Identifier: Apache-2.0
// Fuzzes the rows of evaluation data. The first byte of an input chooses the type of the file. The result must be an
// error or rows whose columns can be read or are refused, and so can they by tasks.
#include <cstdint>

#include "eval/rows.h"
#include "eval/task.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kNames[] = {"rows.jsonl", "rows.csv", "rows.raw", "rows.parquet"};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  using shiftrt::Try;
  Try([&] {
    for (const shiftrt::Row& row : shiftrt::ParseRows(text, kNames[data[0] % 4], {"question", "A", "B", "answer"})) {
      Try([&] { row.Text("question"); });
      Try([&] { row.Texts("choices"); });
      Try([&] { row.Object("choices"); });
      Try([&] { row.Flag("answer"); });
      Try([&] {
        const int64_t index = row.Index("label", 4, 1);
        if (index < 0 || index >= 4) __builtin_trap();
      });
      for (const char* const task : {"gsm8k", "gsm8k_cot", "humaneval", "humaneval_instruct"})
        Try([&] {
          const shiftrt::Example example = shiftrt::FindTask(task)->read(row);
          if (example.contexts.size() != 1 || example.answers.size() != 1) __builtin_trap();
        });
    }
  });
  return 0;
}
