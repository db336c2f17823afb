// SPDX-License-Identifier: Apache-2.0
// Fuzzes the model file of SentencePiece. The result must be an error or a tokenizer that can encode and decode text.
#include <cstdint>

#include "runtime/check.h"
#include "tokenizers/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer =
        shiftrt::LoadSentencePiece({}, std::string(reinterpret_cast<const char*>(data), size), "input");
    tokenizer->Decode(tokenizer->Encode("The keeper's \xE4\xBD\xA0  <s> 1234\n caf\xC3\xA9"), true);
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
