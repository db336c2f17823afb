// SPDX-License-Identifier: Apache-2.0
// Fuzzes chat templates. The result must be an error or a text, after a bounded amount of work.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "tokenizers/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "你好 <b>"},
                 {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
    "tools": [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "number"}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
  try {
    shiftrt::JinjaTemplate({reinterpret_cast<const char*>(data), size}, "input").Render(variables, 0);
  } catch (const shiftrt::Error&) {
  }
  return 0;
}
