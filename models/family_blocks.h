// SPDX-License-Identifier: Apache-2.0
// The functions that the rows of models/families.cc name: from the config.json of a family to its blocks. The sizes and
// the RoPE of `model` are set. They throw Error naming the file for a setting that is not supported.
#pragma once

#include "models/config.h"

namespace shiftrt {

class ConfigReader;

BlockSpec LlamaBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec ArceeBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Jais2Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec CwmBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec MinistralBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Ministral3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec MistralBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen2Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen3MoeBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen2MoeBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec MixtralBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec OlmoeBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen35Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen35MoeBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec GptOssBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Qwen3NextBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec HunYuanBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec ApertusBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Lfm2Block(const ConfigReader& config, const ModelConfig& model);
int64_t Lfm2Units(const ConfigReader& config, int64_t stated);
BlockSpec Phi3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Gemma1Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Gemma2Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec VaultGemmaBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Gemma3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec SmolLm3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Olmo2Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Olmo3Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Exaone4Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec GraniteBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec HyperClovaXBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Granite4Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec GlmBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Glm4Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec SeedOssBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Ernie45Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec Starcoder2Block(const ConfigReader& config, const ModelConfig& model);
BlockSpec NemotronBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec CohereBlock(const ConfigReader& config, const ModelConfig& model);
BlockSpec Cohere2Block(const ConfigReader& config, const ModelConfig& model);

}  // namespace shiftrt
