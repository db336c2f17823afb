// SPDX-License-Identifier: Apache-2.0
// Configurations to plan for, and the plan of the main job for them.
#pragma once

#include <unistd.h>

#include <string>

#include "estimate/main_job.h"
#include "eval/perplexity.h"
#include "models/shapes.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt::test {

struct Sides {
  int64_t layers, hidden, intermediate, heads, kv_heads, vocab;
};
constexpr Sides kLlama405B = {126, 16384, 53248, 128, 8, 128256}, kLlama70B = {80, 8192, 28672, 64, 8, 128256};

inline std::string ConfigText(const Sides& sides, const std::string& dtype = "bfloat16") {
  return fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": {},
          "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
          "vocab_size": {}, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
          "tie_word_embeddings": false, "torch_dtype": "{}"}})",
      sides.hidden, sides.intermediate, sides.layers, sides.heads, sides.kv_heads, sides.vocab, dtype);
}

inline ModelShapes ShapesOf(const Sides& sides, const std::string& dtype = "bfloat16") {
  const TemporaryDirectory directory;
  WriteText(directory.path() / "config.json", ConfigText(sides, dtype));
  return ShapesOfConfig(directory.path() / "config.json");
}

// Quarter of the blocks by `prune`, adapters of rank 64, 256 x 512 tokens, 166 windows of 2048: what `run` does.
inline MainJob JobFor(const ModelShapes& shapes, const std::string& prune = "bi:0.25") {
  MainJob job;
  job.weights = shapes.weights;
  job.recipe.prune = ParsePrune(prune);
  job.recipe.mode = Calibration::kIndependent;
  job.recipe.rank = RankSpec::Fixed(std::min<int64_t>(64, shapes.weights->config.hidden));
  job.calibration = {"text", 256, 512};
  job.text_tokens = 341469;
  job.window = ProtocolWindow("gptq", shapes.weights->config);
  job.variants = 3;
  job.positions = 100;
  job.decoded = 160;
  return job;
}

}  // namespace shiftrt::test
