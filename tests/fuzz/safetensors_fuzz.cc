// SPDX-License-Identifier: Apache-2.0
// Fuzzes the safetensors header. For any bytes, the result must be an error or views that lie within the bytes.
#include <cstdint>

#include "runtime/safetensors.h"

namespace shiftrt {
namespace {

void ReadAll(std::span<const std::byte> bytes) {
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, RawTensor, std::less<>> others;
  try {
    volatile uint8_t sum = 0;
    for (const auto& [name, tensor] : SafetensorsFile::Parse(bytes, "input", &metadata, &others)) {
      const auto* data = static_cast<const uint8_t*>(tensor.data);
      for (int64_t i = 0; i < tensor.bytes(); ++i) sum = sum + data[i];
    }
    for (const auto& [name, tensor] : others)
      for (const std::byte byte : tensor.bytes) sum = sum + static_cast<uint8_t>(byte);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  shiftrt::ReadAll(input);
  // Uses the same bytes again, as the JSON of a file with a correct length field and 64 bytes of data.
  std::vector<std::byte> file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(uint64_t{size} >> (8 * i)));
  file.insert(file.end(), input.begin(), input.end());
  file.resize(file.size() + 64);
  shiftrt::ReadAll(file);
  return 0;
}
