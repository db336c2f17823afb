// SPDX-License-Identifier: Apache-2.0
// Fuzzes Parquet files. The result must be an error or rows, within the memory that is allowed.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/parquet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    shiftrt::ParquetFile file({reinterpret_cast<const char*>(data), size}, "input", uint64_t{1} << 20);
    for (int64_t group = 0; group < file.row_groups() && group < 8; ++group) file.ReadRowGroup(group);
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
