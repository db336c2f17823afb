// SPDX-License-Identifier: Apache-2.0
// Fuzzes tokenizer.json. The result must be an error or a tokenizer that can encode and decode text.
#include <algorithm>
#include <cstdint>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

void Use(const Tokenizer& tokenizer) {
  tokenizer.Decode(tokenizer.EncodeWithBos("The keeper's \xE4\xBD\xA0\xE5\xA5\xBD  <s> 1234\n\n caf\xC3\xA9"), true);
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 300); ++id) {
    try {
      tokenizer.Decode({&id, 1});
    } catch (const Error&) {  // an id that the vocabulary does not contain
    }
  }
}

}  // namespace
}  // namespace shiftrt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shiftrt::TemporaryDirectory directory;
  shiftrt::WriteText(directory.path() / "tokenizer.json", {reinterpret_cast<const char*>(data), size});
  try {
    shiftrt::Use(*shiftrt::LoadTokenizer(directory.path()));
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
