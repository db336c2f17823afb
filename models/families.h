// The table of model families: what one adds to the Llama block.
#pragma once

#include <string_view>
#include <vector>

namespace shiftrt {

struct FamilySpec {
  const char* architecture;  // config.json's architectures[0]
  const char* family;
  bool qkv_bias;          // always there; Llama and Mistral ask config's attention_bias instead
  bool bias_from_config;  // attention_bias and mlp_bias are read
  bool qk_norm;
  bool sliding_window_needs_switch;  // a window counts only with use_sliding_window (Qwen)
};

const std::vector<FamilySpec>& Families();
// Null for an architecture that is not in the table.
const FamilySpec* FindFamily(std::string_view architecture);

}  // namespace shiftrt
