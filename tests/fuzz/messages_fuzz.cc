// SPDX-License-Identifier: Apache-2.0
// Fuzzes messages between processes. The first byte of an input chooses the type. The result must be an error or a
// value that is written as the same bytes.
#include <algorithm>
#include <cstdint>

#include "runtime/messages.h"
#include "shift/criteria/correctable.h"
#include "shift/fit/fit.h"

namespace shiftrt {
namespace {

template <typename T>
void Use(std::span<const std::byte> bytes) {
  T value{};
  Unpacker in(bytes);
  try {
    Read(in, value);
  } catch (const Error&) {
    return;
  }
  Packer out;
  Write(out, value);
  const Bytes again = out.Take();
  if (again.size() > bytes.size() || !std::equal(again.begin(), again.end(), bytes.begin())) __builtin_trap();
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 6) {
    case 0: shiftrt::Use<std::string>(bytes); break;
    case 1: shiftrt::Use<std::vector<std::vector<double>>>(bytes); break;
    case 2: shiftrt::Use<shiftrt::Matrix<float>>(bytes); break;
    case 3: shiftrt::Use<std::vector<std::string>>(bytes); break;
    case 4: shiftrt::Use<shiftrt::Lra>(bytes); break;
    default: shiftrt::Use<std::vector<shiftrt::Lra>>(bytes); break;
  }
  return 0;
}
