#include "models/families.h"

namespace shiftrt {

const std::vector<FamilySpec>& Families() {
  static const std::vector<FamilySpec> families = {
      // architecture           family     qkv_bias  from_config  qk_norm  window_switch
      {"LlamaForCausalLM", "llama", false, true, false, false},
      {"MistralForCausalLM", "mistral", false, false, false, false},
      {"Qwen2ForCausalLM", "qwen2", true, false, false, true},
      {"Qwen3ForCausalLM", "qwen3", false, true, true, true},
  };
  return families;
}

const FamilySpec* FindFamily(std::string_view architecture) {
  for (const FamilySpec& spec : Families())
    if (architecture == spec.architecture) return &spec;
  return nullptr;
}

}  // namespace shiftrt
