// The table of model families: what one adds to the Llama block. All share one scheme of tensor names (TensorShapes in
// models/weights.h) and have an untied head unless the configuration says otherwise.
#pragma once

#include <string_view>
#include <vector>

namespace shiftrt {

// Whether config.json can switch a bias on.
enum class BiasRule { kNever, kAlways, kFromConfig };

// When `sliding_window` means anything.
enum class WindowRule {
  kIgnored,
  kAlways,   // unless null; 4096 where config.json does not mention it
  kSwitched  // by use_sliding_window, for the layers that layer_types or max_window_layers name
};

struct FamilySpec {
  const char* architecture;  // config.json's architectures[0]
  const char* family;
  BiasRule qkv_bias;  // kFromConfig: attention_bias, which gives o_proj one too
  BiasRule mlp_bias;
  bool qk_norm;
  WindowRule window;
};

const std::vector<FamilySpec>& Families();
// Null for an architecture that is not in the table.
const FamilySpec* FindFamily(std::string_view architecture);

}  // namespace shiftrt
