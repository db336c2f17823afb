// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of JSON. What it takes must be what nlohmann's own parser makes of the text, and writing the value
// and reading it again must give the same value.
#include <cstdint>
#include <cstdlib>

#include "runtime/check.h"
#include "runtime/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json value = shiftrt::ParseJson(text, "input");
    if (value != nlohmann::json::parse(text) || value != shiftrt::ParseJson(value.dump(), "again")) std::abort();
    const nlohmann::ordered_json ordered = shiftrt::ParseOrderedJson(text, "input");
    if (ordered != nlohmann::ordered_json::parse(text)) std::abort();
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
