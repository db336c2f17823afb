// SPDX-License-Identifier: Apache-2.0
// The rank and the scale that an adapter of PEFT has for each module.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shiftrt {

// `r`, `lora_alpha`, `rank_pattern`, `alpha_pattern` and `use_rslora` of adapter_config.json.
class LoraScaling {
 public:
  // Throws Error naming `file` and key for a value that is malformed. `most`: the largest rank that makes sense.
  LoraScaling(const nlohmann::json& config, const std::string& file, int64_t most);

  double alpha() const { return alpha_; }  // the alpha of modules that no pattern names
  // Each takes the full name of a module, such as "model.layers.3.self_attn.q_proj". Throws Error if two patterns match
  // it and differ.
  int64_t RankOf(const std::string& module) const;
  double ScaleOf(const std::string& module) const;

 private:
  double Matched(const char* key, const std::string& module, double fallback) const;

  const nlohmann::json& config_;
  std::string file_;
  int64_t rank_;
  double alpha_;
  bool root_;  // the scale is alpha / sqrt(rank)
};

}  // namespace shiftrt
