#include "models/families.h"

namespace shiftrt {

const std::vector<FamilySpec>& Families() {
  using enum BiasRule;
  static const std::vector<FamilySpec> families = {
      // architecture, family, qkv_bias, mlp_bias, qk_norm, window
      {"LlamaForCausalLM", "llama", kFromConfig, kFromConfig, false, WindowRule::kIgnored},
      {"MistralForCausalLM", "mistral", kNever, kNever, false, WindowRule::kAlways},
      {"Qwen2ForCausalLM", "qwen2", kAlways, kNever, false, WindowRule::kSwitched},
      {"Qwen3ForCausalLM", "qwen3", kFromConfig, kNever, true, WindowRule::kSwitched},
  };
  return families;
}

const FamilySpec* FindFamily(std::string_view architecture) {
  for (const FamilySpec& spec : Families())
    if (architecture == spec.architecture) return &spec;
  return nullptr;
}

}  // namespace shiftrt
