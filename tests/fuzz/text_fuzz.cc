// SPDX-License-Identifier: Apache-2.0
// Fuzzes calibration text in each of its file types. The result must be an error or documents.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"
#include "text/documents.h"

namespace shiftrt {
namespace {

// The file name for these bytes: a compressed one if they begin as one, with the type of JSON otherwise.
const char* NameFor(std::string_view bytes, int kind) {
  if (bytes.starts_with("\x1F\x8B")) return kind == 0 ? "text.jsonl.gz" : "text.txt.gz";
  if (bytes.starts_with("\x28\xB5\x2F\xFD")) return kind == 0 ? "text.jsonl.zst" : "text.txt.zst";
  return kind == 0 ? "text.jsonl" : "text.json";
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (int kind = 0; kind < 2; ++kind) {
    const std::filesystem::path file = directory.path() / shiftrt::NameFor(bytes, kind);
    shiftrt::WriteText(file, bytes);
    try {
      const shiftrt::Documents documents = shiftrt::Documents::Read(file);
      for (int64_t i = 0; i < std::min<int64_t>(documents.size(), 100); ++i) {
        const auto document = documents.At(i);
        if (document.prompt > document.text.size()) __builtin_trap();
      }
    } catch (const shiftrt::Error&) {
    }
  }
  return 0;
}
