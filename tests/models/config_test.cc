// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "models/families.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "tests/test_directory.h"

namespace shiftrt {
namespace {

using Json = nlohmann::json;

ModelConfig Parse(const Json& json) { return ParseConfig(json.dump(), "config.json"); }

// The message with which `text` is refused, or "" if it is accepted.
std::string ConfigRefusal(const std::string& text) {
  try {
    ParseConfig(text, "config.json");
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}
std::string ConfigRefusal(const Json& json) { return ConfigRefusal(json.dump()); }

void ExpectConfigRefusal(const Json& json, const std::string& word) {
  const std::string what = ConfigRefusal(json);
  EXPECT_NE(what.find(word), std::string::npos) << json.dump() << "\nsays: " << what;
  EXPECT_TRUE(what.starts_with("config.json: ")) << what;
}

// `base` with the members of `patch` put in (null stays null).
Json With(Json base, const Json& patch) {
  base.update(patch);
  return base;
}

Json Llama() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100,
    "max_position_embeddings": 512})");
}
Json Named(const char* architecture) { return With(Llama(), {{"architectures", {architecture}}}); }

TEST(Config, Llama2) {
  const ModelConfig c = Parse(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true,
    "vocab_size": 32000})"));
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.hidden, 4096);
  EXPECT_EQ(c.intermediate, 11008);
  EXPECT_EQ(c.layers, 32);
  EXPECT_EQ(c.heads, 32);
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.vocab, 32000);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.rms_eps, 1e-5);
  EXPECT_EQ(c.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_FALSE(c.block.qkv_bias || c.block.output_bias || c.block.mlp_bias || c.block.qk_norm || c.tied_head);
  EXPECT_EQ(c.bos_token, 1);
  EXPECT_EQ(c.eos_tokens, std::vector<int32_t>{2});
}

TEST(Config, Qwen3Moe) {  // Qwen3-30B-A3B
  const Json json = Json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})");
  const BlockSpec block = Parse(json).block;
  EXPECT_TRUE(block.mixed && !block.dense && block.qk_norm && block.mixture.normalised);
  EXPECT_EQ(block.mixture.experts, 128);
  EXPECT_EQ(block.mixture.active, 8);
  EXPECT_EQ(block.mixture.units, 768);
  EXPECT_EQ(std::ranges::count(block.mixture.layers, true), 48);
  const BlockSpec mixed = Parse(With(json, {{"decoder_sparse_step", 2}, {"mlp_only_layers", {1, 4}}})).block;
  EXPECT_TRUE(mixed.mixed && mixed.dense);
  EXPECT_FALSE(mixed.mixture.In(0) || mixed.mixture.In(1) || mixed.mixture.In(4));
  EXPECT_TRUE(mixed.mixture.In(3) && mixed.mixture.In(5));
  ExpectConfigRefusal(With(json, {{"num_experts_per_tok", 129}}), "num_experts_per_tok is 129, expected 1 to 128");
  ExpectConfigRefusal(With(json, {{"num_experts", nullptr}}), "num_experts is missing");
  ExpectConfigRefusal(With(json, {{"mlp_only_layers", {"a"}}}), "mlp_only_layers has \"a\"");
  ExpectConfigRefusal(With(json, {{"decoder_sparse_step", 0}}), "decoder_sparse_step is 0");
  ExpectConfigRefusal(With(json, {{"n_group", 4}}), "n_group is 4");
}

TEST(Config, Vicuna) {  // no num_key_value_heads in the first releases
  const ModelConfig c = Parse(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 13824,
    "max_position_embeddings": 2048, "num_attention_heads": 40, "num_hidden_layers": 40, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "vocab_size": 32000})"));
  EXPECT_EQ(c.kv_heads, 40);
  EXPECT_EQ(c.head_dim, 128);
}

TEST(Config, Llama32) {
  const ModelConfig c = Parse(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})"));
  EXPECT_EQ(c.kv_dim(), 512);
  EXPECT_EQ(c.query_dim(), 2048);
  EXPECT_EQ(c.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.rope.factor, 32);
  EXPECT_EQ(c.rope.original_max_positions, 8192);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(c.eos_tokens, (std::vector<int32_t>{128001, 128008, 128009}));
}

TEST(Config, Mistral) {
  const Json json = Json::parse(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32768})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "mistral");
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_FALSE(c.block.AnyWindow());
  const std::vector<int64_t> all(32, 4096);
  EXPECT_EQ(Parse(With(json, {{"sliding_window", 4096}})).block.windows, all);
  EXPECT_FALSE(Parse(With(json, {{"sliding_window", 32768}})).block.AnyWindow());  // no position reaches it
  Json unmentioned = json;
  unmentioned.erase("sliding_window");
  EXPECT_EQ(Parse(unmentioned).block.windows, all);
  ExpectConfigRefusal(With(json, {{"sliding_window", 0}}), "sliding_window");
}

TEST(Config, Qwen2) {
  const ModelConfig c = Parse(Json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 1536,
    "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
    "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})"));
  EXPECT_EQ(c.family, "qwen2");
  EXPECT_TRUE(c.block.qkv_bias);
  EXPECT_FALSE(c.block.output_bias || c.block.mlp_bias || c.block.qk_norm);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(c.head_dim, 128);
}

TEST(Config, Qwen3InTheStyleOfTransformers5) {
  const ModelConfig c = Parse(Json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "intermediate_size": 3072, "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000,
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, "sliding_window": null,
    "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})"));
  EXPECT_EQ(c.family, "qwen3");
  EXPECT_TRUE(c.block.qk_norm);
  EXPECT_FALSE(c.block.qkv_bias);
  EXPECT_EQ(c.query_dim(), 2048);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(c.rope.factor, 4);
}

TEST(Config, BiasesFollowTheFamily) {
  const Json biases = {{"attention_bias", true}, {"mlp_bias", true}, {"sliding_window", nullptr}};
  const ModelConfig llama = Parse(With(Llama(), biases));
  EXPECT_TRUE(llama.block.qkv_bias && llama.block.output_bias && llama.block.mlp_bias);
  ExpectConfigRefusal(With(Named("MistralForCausalLM"), biases), "attention_bias is true: MistralForCausalLM");
  const ModelConfig mistral = Parse(With(Named("MistralForCausalLM"), {{"attention_bias", false}}));
  EXPECT_FALSE(mistral.block.qkv_bias || mistral.block.output_bias || mistral.block.mlp_bias);
  const ModelConfig qwen2 = Parse(With(Named("Qwen2ForCausalLM"), {{"attention_bias", false}}));
  EXPECT_TRUE(qwen2.block.qkv_bias && !qwen2.block.output_bias);
  ExpectConfigRefusal(With(Named("Qwen3ForCausalLM"), biases), "mlp_bias");
  const ModelConfig qwen3 = Parse(With(Named("Qwen3ForCausalLM"), {{"attention_bias", true}}));
  EXPECT_TRUE(qwen3.block.qkv_bias && qwen3.block.output_bias && !qwen3.block.mlp_bias);
}

TEST(Config, QwenHasAWindowOnlyWhereALayerSlides) {
  const Json window = {{"use_sliding_window", true}, {"sliding_window", 128}};
  for (const char* name : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const Json on = With(Named(name), window);
    const auto windows = [&](const Json& more) { return Parse(With(on, more)).block.windows; };
    using Windows = std::vector<int64_t>;
    EXPECT_EQ(windows(Json::object()), Windows());  // max_window_layers is 28 unless it is said, and there are 3 layers
    EXPECT_EQ(windows({{"max_window_layers", 2}}), (Windows{0, 0, 128}));
    EXPECT_EQ(windows({{"max_window_layers", 3}}), Windows());
    EXPECT_EQ(windows({{"max_window_layers", 2}, {"sliding_window", 512}}), Windows());
    EXPECT_EQ(windows({{"max_window_layers", 2}, {"use_sliding_window", false}}), Windows());
    const Json full = "full_attention", slides = "sliding_attention";
    EXPECT_EQ(windows({{"layer_types", {full, slides, full}}}), (Windows{0, 128, 0}));
    EXPECT_EQ(windows({{"max_window_layers", 0}, {"layer_types", {full, full, full}}}), Windows());
    ExpectConfigRefusal(With(on, {{"layer_types", {full}}}), "1 entries for 3 layers");
    ExpectConfigRefusal(With(on, {{"layer_types", {"chunked_attention"}}}), "chunked_attention");
    ExpectConfigRefusal(With(on, {{"layer_types", 5}}), "layer_types");
  }
  ExpectConfigRefusal(With(Llama(), window), "sliding_window is 128: LlamaForCausalLM");
}

TEST(Config, Phi3) {
  const Json json = Json::parse(R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "rope_scaling": null, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": false, "vocab_size": 32064})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "phi3");
  EXPECT_EQ(c.head_dim, 96);
  EXPECT_EQ(c.rms_eps, 1e-5);  // unless it is said
  EXPECT_EQ(c.block.windows, std::vector<int64_t>(32, 2047));
  EXPECT_FALSE(c.block.qkv_bias || c.block.update_norms || c.block.scaled_embeddings);
  Json none = json;
  none.erase("sliding_window");
  EXPECT_FALSE(Parse(none).block.AnyWindow());
  for (const char* kind : {"longrope", "su", "yarn", "linear"})
    EXPECT_NE(ConfigRefusal(With(json, {{"rope_scaling", {{"type", kind}, {"factor", 2}}}})), "") << kind;
  EXPECT_EQ(Parse(With(json, {{"partial_rotary_factor", 0.75}})).rope.RotaryDim(96), 72);
  ExpectConfigRefusal(With(json, {{"partial_rotary_factor", 0.52}}), "partial_rotary_factor 0.52 of head_dim 96 is 49");
  const Json factors(48, 1.5);
  const Json longrope = {{"type", "su"}, {"short_factor", factors}, {"long_factor", factors}};
  const ModelConfig phi35 = Parse(With(json, {{"rope_scaling", longrope}, {"max_position_embeddings", 131072}}));
  EXPECT_EQ(phi35.rope.kind, RopeKind::kLongRope);
  EXPECT_NEAR(phi35.rope.attention_factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-12);
  EXPECT_TRUE(phi35.rope.IsLong(4097) && !phi35.rope.IsLong(4096));
  ExpectConfigRefusal(With(json, {{"rope_scaling", With(longrope, {{"long_factor", {1, 2}}})}}), "list of 48 numbers");
  ExpectConfigRefusal(With(json, {{"rope_scaling", With(longrope, {{"short_mscale", 1.2}})}}), "short_mscale");
  Json unnamed = With(json, {{"rope_scaling", longrope}, {"max_position_embeddings", 131072}});
  unnamed.erase("original_max_position_embeddings");
  EXPECT_EQ(Parse(unnamed).rope.original_max_positions, 4096);
  const Json phi4 = {{"full_attn_mod", 1}, {"interpolate_factor", 1}, {"lm_head_bias", false}};
  EXPECT_EQ(ConfigRefusal(With(json, phi4)), "");
  ExpectConfigRefusal(With(json, {{"lm_head_bias", true}}), "lm_head_bias");
  ExpectConfigRefusal(With(json, {{"interpolate_factor", 2}}), "interpolate_factor");
}

// The directory of the released Gemma 3 4B: few settings of its own, and the images' next to them.
TEST(Config, TheTextModelOfAModelOfTextAndImages) {
  const Json json = Json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eos_token_id": [1, 106], "image_token_index": 262144, "model_type": "gemma3", "text_config": {"hidden_size": 2560,
    "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0,
    "rope_type": "linear"}, "sliding_window": 1024}, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_TRUE(c.tied_head && c.block.qk_norm && c.block.update_norms);
  EXPECT_EQ(c.block.Window(4), 1024);
  EXPECT_EQ(c.block.Window(5), 0);
  EXPECT_EQ(c.block.Rope(4), RopeChoice::kSecond);
  EXPECT_EQ(c.block.Rope(5), RopeChoice::kFirst);
  EXPECT_EQ(c.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.second_rope.kind, RopeKind::kDefault);
  EXPECT_EQ(c.second_rope.theta, 1e4);
  EXPECT_EQ(c.eos_tokens, (std::vector<int32_t>{1, 106}));
  ExpectConfigRefusal(With(json, {{"text_config", {{"model_type", "qwen3"}}}}), "text_config.model_type");
  Json both = json;  // in transformers 5, the whole model's setting counts
  both["text_config"]["tie_word_embeddings"] = true;
  both["tie_word_embeddings"] = false;
  EXPECT_FALSE(Parse(both).tied_head);
  both["text_config"]["attn_logit_softcapping"] = 50.0;
  ExpectConfigRefusal(both, "attn_logit_softcapping");
}

// The settings of the released Qwen 3.5 35B-A3B, Qwen 3 Next 80B-A3B and Qwen 1.5 MoE A2.7B.
TEST(Config, SharedExperts) {
  const Json text = Json::parse(R"({"attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true,
    "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
    "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "output_router_logits": false, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512, "use_cache": true, "vocab_size": 248320, "rope_parameters":
    {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000,
    "partial_rotary_factor": 0.25}})");
  const Json images = {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                       {"model_type", "qwen3_5_moe"},
                       {"tie_word_embeddings", false},
                       {"text_config", text},
                       {"vision_config", {{"depth", 27}}}};
  const ModelConfig moe = Parse(images);
  EXPECT_EQ(moe.family, "qwen3_5_moe");
  EXPECT_TRUE(moe.block.mixed && !moe.block.dense && moe.block.shared_expert && moe.block.mixture.normalised);
  EXPECT_EQ(moe.block.mixture.shared_units, 512);
  EXPECT_EQ(moe.block.MixerOf(2), Mixer::kGatedDelta);
  Json some = images;
  some["text_config"]["mlp_only_layers"] = {3};
  ExpectConfigRefusal(some, "layers without experts are not supported");

  Json next = text;
  for (const char* key : {"attn_output_gate", "mamba_ssm_dtype", "mtp_num_hidden_layers",
                          "mtp_use_dedicated_embeddings", "rope_parameters"})
    next.erase(key);
  next.update({{"architectures", {"Qwen3NextForCausalLM"}},
               {"model_type", "qwen3_next"},
               {"decoder_sparse_step", 1},
               {"intermediate_size", 5120},
               {"num_experts", 512},
               {"num_experts_per_tok", 10},
               {"num_hidden_layers", 48},
               {"norm_topk_prob", true},
               {"partial_rotary_factor", 0.25},
               {"rope_scaling", nullptr},
               {"rope_theta", 10000000},
               {"use_sliding_window", false}});
  EXPECT_EQ(Parse(next).rope.RotaryDim(256), 64);
  EXPECT_TRUE(Parse(next).block.shared_expert && Parse(next).block.attention_gate);

  const Json first = Json::parse(R"({"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
    "model_type": "qwen2_moe", "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false,
    "output_router_logits": false, "router_aux_loss_coef": 0.001})");
  const ModelConfig c = Parse(first);
  EXPECT_TRUE(c.block.qkv_bias && !c.block.output_bias && !c.block.mixture.normalised && !c.block.AnyWindow());
  EXPECT_EQ(c.block.mixture.shared_units, 5632);
  const ModelConfig windows = Parse(With(first, {{"use_sliding_window", true}, {"sliding_window", 64}}));
  EXPECT_EQ(windows.block.Window(0), 64);
  EXPECT_EQ(windows.block.Window(1), 0);
  EXPECT_EQ(windows.block.Window(22), 0);
  ExpectConfigRefusal(With(first, {{"shared_expert_intermediate_size", 0}}), "shared_expert_intermediate_size is 0");
}

// The settings of the released gpt-oss 20B.
TEST(Config, AttentionSinksAndClampedUnits) {
  Json json = Json::parse(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
    "vocab_size": 201088})");
  for (int layer = 0; layer < 24; ++layer)
    json["layer_types"].push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.block.attention_sinks && c.block.qkv_bias && c.block.output_bias && !c.block.mlp_bias);
  EXPECT_TRUE(c.block.mixed && !c.block.dense && c.block.expert_bias && c.block.mixture.normalised);
  EXPECT_EQ(c.block.clamped, (ClampedSwiGlu{1.702f, 7}));
  EXPECT_EQ(c.block.mixture.experts, 32);
  EXPECT_EQ(c.block.mixture.active, 4);
  EXPECT_EQ(c.block.mixture.units, 2880);
  EXPECT_EQ(c.block.Window(0), 128);
  EXPECT_EQ(c.block.Window(1), 0);
  EXPECT_TRUE(c.rope.kind == RopeKind::kYarn && !c.rope.truncate);
  EXPECT_EQ(c.quantisation.Name(), "MXFP4, groups of 32");
  // Those are the defaults of what a file may leave out.
  Json less = json;
  for (const char* key : {"layer_types", "rope_scaling", "rope_theta", "swiglu_limit", "sliding_window", "head_dim",
                          "rms_norm_eps", "num_experts_per_tok", "attention_bias", "num_key_value_heads"})
    less.erase(key);
  const ModelConfig d = Parse(less);
  EXPECT_EQ(d.block.windows, c.block.windows);
  EXPECT_EQ(d.block.clamped, c.block.clamped);
  EXPECT_EQ(d.rope.factor, 32);
  EXPECT_EQ(d.rope.theta, 150000);
  ExpectConfigRefusal(With(json, {{"hidden_act", "gelu_pytorch_tanh"}}), "hidden_act is not silu");
  ExpectConfigRefusal(With(json, {{"num_local_experts", 0}}), "num_local_experts is 0");
}

// The settings that released Hunyuan models have.
TEST(Config, AnAlphaStretchesTheBase) {
  const Json json = Json::parse(R"({"architectures": ["HunYuanDenseV1ForCausalLM"], "add_classification_head": false,
    "attention_bias": false, "attention_dropout": 0.0, "attention_head_dim": 128, "bos_token_id": 1,
    "cla_share_factor": 2, "class_num": 0, "dense_list": [4096, 0], "eod_token_id": 127967, "eos_token_id": 127960,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "mlp_bias": false, "model_type": "hunyuan_v1_dense", "norm_type": "rms",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "org_vocab_size": 128167,
    "pad_id": 127961, "pad_token_id": 127961, "pool_type": "last", "position_embedding_xdrope": false,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1,
    "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "type": "dynamic"}, "rope_theta": 10000.0,
    "sep_token_id": 127962, "tie_word_embeddings": true, "use_cache": true, "use_cla": false, "use_qk_norm": true,
    "use_rotary_pos_emb": true, "vocab_size": 128167})");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.block.qk_norm && c.block.qk_norm_after_rotation && !c.block.qkv_bias && c.tied_head);
  EXPECT_EQ(c.rope.kind, RopeKind::kDefault);
  EXPECT_NEAR(c.rope.theta, 10000 * std::pow(1000.0, 128.0 / 126), 1e-3);
  const Json plain = With(json, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  EXPECT_EQ(Parse(plain).rope.theta, 10000) << "without alpha, the base is that of the configuration";
  ExpectConfigRefusal(With(json, {{"use_qk_norm", false}}), "use_qk_norm is false");
  ExpectConfigRefusal(With(json, {{"use_cla", true}}), "use_cla");
  ExpectConfigRefusal(With(json, {{"position_embedding_xdrope", true}}), "position_embedding_xdrope");
}

// The settings that released Apertus models have.
TEST(Config, XieluHasNumbersOfEachLayer) {
  const Json json = Json::parse(R"({"architectures": ["ApertusForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 68, "hidden_act": "xielu", "hidden_dropout": 0.0,
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 21504, "max_position_embeddings": 65536,
    "mlp_bias": false, "model_type": "apertus", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pad_token_id": 3, "post_norm": false, "qk_norm": true, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3"}, "rope_theta": 12000000,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 131072})");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.block.xielu && c.block.qk_norm && !c.block.gated && !c.block.qk_norm_after_rotation);
  EXPECT_TRUE(c.rope.kind == RopeKind::kLlama3 && c.rope.theta == 12e6 && c.rope.original_max_positions == 8192);
  // The RoPE is that of transformers where a file leaves it out.
  Json less = json;
  for (const char* key : {"rope_scaling", "rope_theta", "rms_norm_eps"}) less.erase(key);
  const ModelConfig d = Parse(less);
  EXPECT_TRUE(d.rope.kind == c.rope.kind && d.rope.theta == c.rope.theta && d.rope.factor == c.rope.factor);
  EXPECT_EQ(d.rms_eps, c.rms_eps);
  ExpectConfigRefusal(With(json, {{"hidden_act", "silu"}}), "hidden_act \"silu\" is not supported (xielu is)");
  ExpectConfigRefusal(With(json, {{"post_norm", true}}), "post_norm true");
  ExpectConfigRefusal(With(json, {{"qk_norm", false}}), "qk_norm false");
}

// The settings that released LFM2 models have, in which some keys have two names.
TEST(Config, LayersWithShortConvolutions) {
  const Json json = Json::parse(R"({"architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true,
    "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": true,
    "block_use_xavier_init": true, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048,
    "conv_dim_out": 2048, "conv_use_xavier_init": true, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048, "initializer_range": 0.02, "max_position_embeddings": 128000, "model_type": "lfm2",
    "norm_eps": 1e-05, "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pad_token_id": 0, "rope_theta": 1000000.0, "theta": 1000000.0, "tie_embedding": true, "torch_dtype": "bfloat16",
    "use_cache": true, "use_pos_enc": true, "vocab_size": 65536})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.intermediate, 8192);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_TRUE(c.tied_head && c.block.qk_norm && c.block.attention && c.block.short_convolution);
  for (const int64_t layer : {2, 5, 14}) EXPECT_EQ(c.block.MixerOf(layer), Mixer::kAttention);
  for (const int64_t layer : {0, 3, 15}) EXPECT_EQ(c.block.MixerOf(layer), Mixer::kShortConvolution);
  EXPECT_EQ(c.block.convolution.channels, 2048);
  EXPECT_EQ(c.block.convolution.width, 3);
  EXPECT_EQ(c.block.RowFloats(), 2 * 2048);
  EXPECT_EQ(Parse(With(json, {{"block_ff_dim", 6656}})).intermediate, 4608) << "4437 is rounded up";
  EXPECT_EQ(Parse(With(json, {{"block_ffn_dim_multiplier", nullptr}, {"block_ff_dim", 6656}})).intermediate, 4437);
  EXPECT_EQ(Parse(With(json, {{"block_auto_adjust_ff_dim", false}})).intermediate, 12288);
  EXPECT_FALSE(Parse(With(json, {{"tie_embedding", false}})).tied_head);
  std::vector<std::string> types(16, "conv");
  types[0] = "full_attention";
  const ModelConfig named = Parse(With(json, {{"layer_types", types}}));
  EXPECT_EQ(named.block.MixerOf(0), Mixer::kAttention);
  EXPECT_EQ(named.block.MixerOf(2), Mixer::kShortConvolution) << "the names count for more than the numbers";
  types[1] = "linear_attention";
  ExpectConfigRefusal(With(json, {{"layer_types", types}}), "linear_attention");
  ExpectConfigRefusal(With(json, {{"conv_bias", true}}), "conv_bias is true");
  ExpectConfigRefusal(With(json, {{"full_attn_idxs", 3}}), "full_attn_idxs is 3, expected a list");
  ExpectConfigRefusal(With(json, {{"conv_L_cache", 0}}), "conv_L_cache");
}

TEST(Config, Gemma4IsRefusedByName) {
  const Json text = {{"model_type", "gemma4_text"}, {"hidden_size", 2560}, {"num_hidden_layers", 42}};
  for (const Json& json : {Json{{"architectures", {"Gemma4ForConditionalGeneration"}}, {"text_config", text}},
                           Json{{"architectures", {"Gemma4ForCausalLM"}}, {"model_type", "gemma4_text"}}})
    ExpectConfigRefusal(json, "is not supported: blocks of Gemma 4 have heads of two sizes");
}

// The settings of the released Qwen 3.5 0.8B.
TEST(Config, LayersWithGatedDeltaNetworks) {
  const Json json = Json::parse(R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056,
    "model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": {"attention_bias": false,
    "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "use_cache": true, "vocab_size": 248320, "rope_parameters": {"mrope_interleaved": true,
    "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}},
    "vision_config": {"depth": 12}})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "qwen3_5");
  EXPECT_EQ(c.block.MixerOf(2), Mixer::kGatedDelta);
  EXPECT_EQ(c.block.MixerOf(3), Mixer::kAttention);
  EXPECT_EQ(c.block.MixerOf(23), Mixer::kAttention);
  EXPECT_EQ(c.block.delta.channels(), 3 * 2048);
  EXPECT_EQ(c.rope.RotaryDim(c.head_dim), 64);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.block.norm_offset, 1);
  EXPECT_TRUE(c.tied_head && c.block.qk_norm && c.block.attention_gate);
  const auto with = [&](const Json& more) {
    Json changed = json;
    changed["text_config"].update(more);
    return changed;
  };
  EXPECT_EQ(Parse(with({{"full_attention_interval", 6}})).block.MixerOf(3), Mixer::kGatedDelta);
  ExpectConfigRefusal(with({{"linear_num_value_heads", 24}}), "linear_num_value_heads 24 does not divide");
  ExpectConfigRefusal(with({{"attn_output_gate", false}}), "attn_output_gate");
  ExpectConfigRefusal(with({{"hidden_act", "gelu_pytorch_tanh"}}), "hidden_act");
  ExpectConfigRefusal(with({{"layer_types", {"linear_attention"}}}), "layer_types");
  ExpectConfigRefusal(with({{"layer_types", std::vector<std::string>(24, "sliding_attention")}}), "sliding_attention");
  ExpectConfigRefusal(with({{"linear_key_head_dim", 0}}), "linear_key_head_dim");
}

TEST(Config, LayersWithoutRotaryEmbedding) {
  const auto ropes = [](const Json& more) { return Parse(With(Named("SmolLM3ForCausalLM"), more)).block.ropes; };
  constexpr RopeChoice kFirst = RopeChoice::kFirst, kNone = RopeChoice::kNone;
  EXPECT_EQ(ropes({{"no_rope_layer_interval", 2}}), (std::vector<RopeChoice>{kFirst, kNone, kFirst}));
  EXPECT_EQ(ropes({{"no_rope_layers", {0, 1, 1}}}), (std::vector<RopeChoice>{kNone, kFirst, kFirst}));
  ExpectConfigRefusal(With(Named("SmolLM3ForCausalLM"), {{"no_rope_layers", {0, 1}}}), "no_rope_layers");
  const Json sliding = {{"layer_types", {"sliding_attention", "full_attention", "full_attention"}},
                        {"sliding_window", 8}};
  ExpectConfigRefusal(With(Named("SmolLM3ForCausalLM"), sliding), "use_sliding_window");
  const auto exaone = [](const Json& more) { return Parse(With(Named("Exaone4ForCausalLM"), more)).block; };
  EXPECT_EQ(exaone({{"sliding_window", 64}, {"sliding_window_pattern", 2}}).ropes,
            (std::vector<RopeChoice>{kFirst, kNone, kFirst}));
  EXPECT_TRUE(exaone({{"sliding_window", nullptr}, {"reorder_qk_norm", true}}).ropes.empty());
  ExpectConfigRefusal(With(Named("Exaone4ForCausalLM"), {{"reorder_qk_norm", false}}), "reorder_qk_norm");
}

// One key that no family reads, among the settings and among those of RoPE.
TEST(Config, RefusesAKeyThatNothingReads) {
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::directory_iterator(TestDirectory() / "goldens/models")) {
    const Json json = Json::parse(ReadFile(entry.path() / "config.json"));
    SCOPED_TRACE(entry.path().string());
    const auto architecture = json["architectures"][0].get<std::string>();
    seen.insert(architecture);
    EXPECT_EQ(ConfigRefusal(json), "");
    ExpectConfigRefusal(With(json, {{"attention_sinks", 4}}), "attention_sinks is 4: " + architecture);
    EXPECT_EQ(ConfigRefusal(With(json, {{"attention_sinks", nullptr}, {"temperature", 0.7}})), "");
    if (!json.contains("rope_scaling")) continue;
    ExpectConfigRefusal(With(json, {{"rope_scaling", With(json["rope_scaling"], {{"spin", 4}})}}), "spin is 4");
  }
  for (const Family& family : Families()) EXPECT_TRUE(seen.contains(family.architecture)) << family.architecture;
}

TEST(Config, AnUnknownArchitectureNamesTheNearest) {
  ExpectConfigRefusal(Named("LlamaNextForCausalLM"), "The nearest that is supported is LlamaForCausalLM: it reads all");
  ExpectConfigRefusal(Named("Qwen3VlForCausalLM"), "The nearest that is supported is Qwen3ForCausalLM");
  ExpectConfigRefusal(With(Named("LlamaNextForCausalLM"), {{"attention_sinks", 0.5}, {"spin", 1}}),
                      "LlamaForCausalLM: this file has attention_sinks, spin, which LlamaForCausalLM does not read");
}

TEST(Config, Starcoder2) {
  const Json json = Json::parse(R"({"architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 0, "embedding_dropout": 0.0, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 4608, "initializer_range": 0.018042, "intermediate_size": 18432, "max_position_embeddings": 16384,
    "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
    "num_attention_heads": 36, "num_hidden_layers": 3, "num_key_value_heads": 4, "residual_dropout": 0.0,
    "rope_theta": 1000000, "sliding_window": 4096, "torch_dtype": "bfloat16", "use_bias": true, "use_cache": true,
    "vocab_size": 49152})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "starcoder2");
  EXPECT_EQ(c.rms_eps, 1e-5);
  EXPECT_TRUE(c.tied_head && c.block.layer_norm && c.block.norm_bias && c.block.qkv_bias && c.block.output_bias &&
              c.block.mlp_bias);
  EXPECT_FALSE(c.block.gated || c.block.parallel);
  EXPECT_EQ(c.block.norm_offset, 0);
  EXPECT_EQ(c.block.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.block.windows, std::vector<int64_t>(3, 4096));
  const ModelConfig plain =
      Parse(With(json, {{"use_bias", false}, {"hidden_act", "gelu"}, {"sliding_window", nullptr}}));
  EXPECT_TRUE(plain.block.norm_bias);
  EXPECT_FALSE(plain.block.qkv_bias || plain.block.output_bias || plain.block.mlp_bias || plain.block.AnyWindow());
  EXPECT_EQ(plain.block.activation, Activation::kGelu);
  ExpectConfigRefusal(With(json, {{"hidden_act", "silu"}}), "hidden_act \"silu\"");
  ExpectConfigRefusal(With(json, {{"norm_epsilon", -1}}), "norm_epsilon");
}

TEST(Config, Nemotron) {
  const Json json = Json::parse(R"({"architectures": ["NemotronForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 3, "head_dim": 128, "hidden_act": "relu2",
    "hidden_size": 3072, "initializer_range": 0.0134, "intermediate_size": 9216, "max_position_embeddings": 4096,
    "mlp_bias": false, "model_type": "nemotron", "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rope_theta": 10000.0, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 256000})");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.block.layer_norm && c.block.norm_bias && c.block.input_norms);
  EXPECT_FALSE(c.block.gated || c.block.parallel || c.tied_head || c.block.qkv_bias || c.block.mlp_bias);
  EXPECT_EQ(c.block.norm_offset, 1);
  EXPECT_EQ(c.block.activation, Activation::kRelu2);
  EXPECT_EQ(c.rope.partial, 0.5);  // unless it is said
  EXPECT_EQ(Parse(With(json, {{"partial_rotary_factor", 0.25}})).rope.partial, 0.25);
  const ModelConfig biased = Parse(With(json, {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.block.qkv_bias && biased.block.output_bias && biased.block.mlp_bias);
}

// The released config of Gemma 2B, which names the activation wrongly.
TEST(Config, Gemma) {
  const Json json = Json::parse(R"({"architectures": ["GemmaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18,
    "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0,
    "use_cache": true, "vocab_size": 256000})");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.tied_head && c.block.scaled_embeddings && c.block.gated && c.block.input_norms);
  EXPECT_FALSE(c.block.update_norms || c.block.AnyWindow() || c.block.qkv_bias);
  EXPECT_EQ(c.block.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.block.norm_offset, 1);
  EXPECT_EQ(c.block.attention_scale, 1 / std::sqrt(256.0f));
  EXPECT_EQ(Parse(With(json, {{"hidden_act", "silu"}})).block.activation, Activation::kSilu);
  ExpectConfigRefusal(With(json, {{"hidden_act", "relu"}}), "hidden_act \"relu\"");
  ExpectConfigRefusal(With(json, {{"use_bidirectional_attention", true}}), "use_bidirectional_attention");
}

// The families set what config.json leaves out.
TEST(Config, DefaultsOfFamiliesOfLlama) {
  const auto block = [](const char* architecture, const Json& more) {
    return Parse(With(Named(architecture), more)).block;
  };
  const BlockSpec arcee = block("ArceeForCausalLM", {{"hidden_act", "relu2"}});
  EXPECT_FALSE(arcee.gated || arcee.layer_norm || arcee.qkv_bias || arcee.mlp_bias);
  EXPECT_EQ(arcee.activation, Activation::kRelu2);
  const BlockSpec jais = block("Jais2ForCausalLM", {{"hidden_act", "relu2"}});
  EXPECT_TRUE(jais.layer_norm && jais.norm_bias && jais.qkv_bias && jais.output_bias && jais.mlp_bias);
  EXPECT_EQ(block("CwmForCausalLM", {{"sliding_window", 8}}).windows, (std::vector<int64_t>{0, 8, 8}));
  EXPECT_EQ(block("MinistralForCausalLM", {{"sliding_window", 8}}).windows, (std::vector<int64_t>{8, 8, 8}));
  const BlockSpec clova = block("HyperCLOVAXForCausalLM", {{"logits_scaling", 0.5}});
  EXPECT_TRUE(clova.update_norms);
  EXPECT_EQ(clova.logit_scale, 0.5f);
}

// The released config of Command R7B, with fewer layers.
TEST(Config, Cohere2) {
  const Json json = Json::parse(R"({"architectures": ["Cohere2ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 5, "cache_implementation": "hybrid", "eos_token_id": 255001,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 132096,
    "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0, "position_embedding_type": "rope_gptj",
    "rope_scaling": null, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
    "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
    "use_parallel_embedding": true, "vocab_size": 256000})");
  const ModelConfig c = Parse(json);
  EXPECT_TRUE(c.block.layer_norm && c.block.parallel && c.block.shared_norm && c.block.gated && c.tied_head);
  EXPECT_FALSE(c.block.norm_bias || c.block.input_norms || c.block.qkv_bias);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(c.block.logit_scale, 0.25f);
  EXPECT_EQ(c.block.windows, (std::vector<int64_t>{4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(c.block.Rope(2), RopeChoice::kFirst);
  EXPECT_EQ(c.block.Rope(3), RopeChoice::kNone);
  ExpectConfigRefusal(With(json, {{"head_dim", 64}}), "head_dim is 64");
  ExpectConfigRefusal(With(json, {{"sliding_window", nullptr}}), "sliding_window");
  Json first = With(json, {{"architectures", {"CohereForCausalLM"}}, {"model_type", "cohere"}, {"use_qk_norm", false}});
  for (const char* key : {"layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
                          "sliding_window", "sliding_window_pattern", "use_embedding_sharing", "use_gated_activation",
                          "use_parallel_block", "use_parallel_embedding"})
    first.erase(key);
  EXPECT_TRUE(Parse(first).block.parallel && !Parse(first).block.AnyWindow() && Parse(first).block.ropes.empty());
  ExpectConfigRefusal(With(first, {{"use_qk_norm", true}}), "use_qk_norm");
  first.erase("rope_theta");
  EXPECT_EQ(Parse(With(first, {{"model_max_length", 8192}})).rope.theta, 500000);
}

TEST(Config, Gemma2) {
  const Json json = Json::parse(R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608, "intermediate_size": 36864,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32, "num_hidden_layers": 5,
    "num_key_value_heads": 16, "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "vocab_size": 256000})");
  const ModelConfig c = Parse(json);
  EXPECT_EQ(c.family, "gemma2");
  EXPECT_TRUE(c.tied_head && c.block.update_norms && c.block.scaled_embeddings);
  EXPECT_EQ(c.block.norm_offset, 1);
  EXPECT_EQ(c.block.activation, Activation::kGeluTanh);
  EXPECT_FLOAT_EQ(c.block.attention_scale, 1.0f / 12);
  EXPECT_EQ(c.block.attention_cap, 50);
  EXPECT_EQ(c.block.logit_cap, 30);
  EXPECT_EQ(c.block.windows, (std::vector<int64_t>{4096, 0, 4096, 0, 4096}));
  EXPECT_EQ(ConfigRefusal(With(json, {{"sliding_window_size", 4096}})), "");
  Json silent = json;
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "head_dim", "hidden_activation",
                          "query_pre_attn_scalar", "sliding_window"})
    silent.erase(key);
  const ModelConfig defaults = Parse(silent);
  EXPECT_EQ(defaults.head_dim, 256);
  EXPECT_EQ(defaults.block.attention_scale, 1.0f / 16);
  EXPECT_EQ(defaults.block.windows, c.block.windows);
  EXPECT_EQ(defaults.block.attention_cap, 50);
  EXPECT_EQ(defaults.block.activation, Activation::kGeluTanh);
  const ModelConfig open = Parse(With(json, {{"attn_logit_softcapping", nullptr},
                                             {"final_logit_softcapping", nullptr},
                                             {"sliding_window", nullptr},
                                             {"attention_bias", true}}));
  EXPECT_EQ(open.block.attention_cap, 0);
  EXPECT_EQ(open.block.logit_cap, 0);
  EXPECT_FALSE(open.block.AnyWindow());
  EXPECT_TRUE(open.block.qkv_bias && open.block.output_bias);
  ExpectConfigRefusal(With(json, {{"use_bidirectional_attention", true}}), "use_bidirectional_attention");
  ExpectConfigRefusal(With(json, {{"hidden_activation", "relu"}}), "hidden_activation \"relu\"");
  ExpectConfigRefusal(With(json, {{"final_logit_softcapping", -30}}), "final_logit_softcapping");
  ExpectConfigRefusal(With(json, {{"query_pre_attn_scalar", 0}}), "query_pre_attn_scalar");
}

TEST(Config, BothStylesOfRopeSettings) {
  const Json settings = {{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  const ModelConfig with_type = Parse(With(Llama(), {{"rope_scaling", With(settings, {{"type", "llama3"}})}}));
  EXPECT_EQ(with_type.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(with_type.rope.original_max_positions, 512);
  const Json five = With(settings, {{"rope_type", "llama3"}, {"rope_theta", 3e5}});
  EXPECT_EQ(Parse(With(Llama(), {{"rope_parameters", five}, {"rope_theta", 7e5}})).rope.theta, 3e5);
  // transformers lets rope_scaling win, unless it is empty.
  const Json both = With(Llama(), {{"rope_parameters", five}, {"rope_theta", 7e5}});
  const ModelConfig classic = Parse(With(both, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(classic.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(classic.rope.theta, 7e5);
  EXPECT_EQ(Parse(With(both, {{"rope_scaling", Json::object()}})).rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(Parse(With(both, {{"original_max_position_embeddings", 256}})).rope.original_max_positions, 256);
}

TEST(Config, RopeFrequenciesAreThoseOfTransformers) {
  const Json goldens = Json::parse(ReadFile(TestDirectory() / "goldens/rope.json"));
  ASSERT_GE(goldens.size(), 8u);
  for (const Json& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const RopeFrequencies rope = MakeRopeFrequencies(Parse(golden["config"]));
    EXPECT_FLOAT_EQ(rope.scale, golden["scale"].get<float>());
    ASSERT_EQ(rope.inverse.size(), golden["inverse"].size());
    for (size_t i = 0; i < rope.inverse.size(); ++i) {
      const auto expected = golden["inverse"][i].get<float>();
      // A power may round the other way, and the ramp and the stretch add roundings of that.
      EXPECT_NEAR(rope.inverse[i], expected, expected * 2 * std::numeric_limits<float>::epsilon()) << i;
    }
  }
}

TEST(Config, RefusesRopeByName) {
  const auto rope = [](const Json& settings) { return With(Llama(), {{"rope_scaling", settings}}); };
  for (const char* kind : {"longrope", "su", "proportional", "mrope"})
    ExpectConfigRefusal(rope({{"rope_type", kind}, {"factor", 2}}), kind);
  ExpectConfigRefusal(rope({{"type", "linear"}}), "factor is missing");
  ExpectConfigRefusal(rope({{"type", "linear"}, {"factor", 0}}), "factor");
  ExpectConfigRefusal(rope({{"type", "linear"}, {"factor", "2"}}), "factor");
  ExpectConfigRefusal(rope({{"type", 3}}), "type");
  ExpectConfigRefusal(rope({{"type", "llama3"}, {"factor", 2}}), "low_freq_factor");
  ExpectConfigRefusal(rope({{"type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
                      "high_freq_factor");
  ExpectConfigRefusal(rope({{"type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}), "attention_factor");
  ExpectConfigRefusal(rope({{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}}), "original_max");
  ExpectConfigRefusal(rope(5), "rope_scaling");
  ExpectConfigRefusal(With(Llama(), {{"rope_theta", 1}}), "rope_theta");
  ExpectConfigRefusal(With(Llama(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  ExpectConfigRefusal(With(Llama(), {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
                      "full_attention");
}

// Without a name, transformers goes by the model's type. The base class has the same blocks.
TEST(Config, TheArchitectureFollowsFromTheTypeOrTheBaseClass) {
  const auto family = [](const Json& patch) { return Parse(With(Llama(), patch)).family; };
  EXPECT_EQ(family({{"architectures", nullptr}, {"model_type", "llama"}}), "llama");
  EXPECT_EQ(family({{"architectures", nullptr}, {"model_type", "qwen3"}}), "qwen3");
  EXPECT_EQ(Parse({{"model_type", "gemma3_text"}}).family, "gemma3");  // a type that is not the family's name
  EXPECT_EQ(family({{"architectures", {"LLaMAForCausalLM"}}}), "llama");
  EXPECT_EQ(family({{"architectures", {"LlamaModel"}}}), "llama");
  Json missing = Llama();
  missing.erase("architectures");
  ExpectConfigRefusal(missing, "such as \"architectures\": [\"LlamaForCausalLM\"]");
  missing["model_type"] = "llama";
  EXPECT_EQ(Parse(missing).family, "llama");
  ExpectConfigRefusal(With(Llama(), {{"architectures", {"LlamaForSequenceClassification"}}}), "not supported");
}

TEST(Config, RopeAsTransformersReadsIt) {
  const auto rope = [](const Json& settings) { return Parse(With(Llama(), {{"rope_scaling", settings}})); };
  // Within max_position_embeddings, which no sequence exceeds, dynamic RoPE is the default.
  const ModelConfig dynamic = rope({{"type", "dynamic"}, {"factor", 2.0}});
  EXPECT_EQ(dynamic.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(dynamic.max_positions, 512);
  // Qwen 2.5's model card adds YaRN and leaves max_position_embeddings as it is.
  EXPECT_EQ(rope({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}).max_positions, 2048);
  EXPECT_EQ(rope({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}).max_positions, 512);
  EXPECT_EQ(Parse(With(Llama(), {{"hidden_act", "swish"}})).block.activation, Activation::kSilu);
}

TEST(Config, RefusesUnsupportedSettingsByName) {
  ExpectConfigRefusal(Named("GPT2LMHeadModel"), "GPT2LMHeadModel");
  ExpectConfigRefusal(Named("GPT2LMHeadModel"), "Qwen3ForCausalLM");  // and says what is known
  ExpectConfigRefusal(With(Llama(), {{"architectures", Json::array()}}), "architectures");
  ExpectConfigRefusal(With(Llama(), {{"architectures", {"LlamaForCausalLM", "Qwen2ForCausalLM"}}}), "architectures");
  ExpectConfigRefusal(With(Llama(), {{"architectures", {1}}}), "architectures");
  ExpectConfigRefusal(With(Llama(), {{"hidden_act", "gelu"}}), "gelu");
  ExpectConfigRefusal(With(Llama(), {{"quantization_config", {{"quant_method", "gptq"}}}}), "quantization_config");
}

TEST(Config, RefusesNumbersThatCannotBe) {
  const auto huge = std::numeric_limits<uint64_t>::max();
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const Json& value : {Json(0), Json(-1), Json(huge), Json(INT64_MAX), Json(INT64_MIN), Json(1.5), Json("8"),
                              Json(true), Json::array({8})})
      ExpectConfigRefusal(With(Llama(), {{key, value}}), key);
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                          "max_position_embeddings"}) {
    Json json = Llama();
    json.erase(key);
    ExpectConfigRefusal(json, std::string(key) + " is missing");
  }
  ExpectConfigRefusal(With(Llama(), {{"num_key_value_heads", 3}}), "8 attention heads");
  ExpectConfigRefusal(With(Llama(), {{"num_attention_heads", 12}}), "64 does not divide over 12");
  ExpectConfigRefusal(With(Llama(), {{"head_dim", 7}}), "head_dim 7");
  ExpectConfigRefusal(With(Llama(), {{"num_attention_heads", 64}}), "head_dim 1");
  ExpectConfigRefusal(With(Llama(), {{"rms_norm_eps", -1e-6}}), "rms_norm_eps");
  ExpectConfigRefusal(With(Llama(), {{"tie_word_embeddings", 1}}), "tie_word_embeddings");
  ExpectConfigRefusal(With(Llama(), {{"bos_token_id", -2}}), "bos_token_id");
  ExpectConfigRefusal(With(Llama(), {{"bos_token_id", Json::array()}}), "bos_token_id");
  for (const Json& value : {Json(-1), Json(huge), Json("2"), Json({1, -1}), Json({{1}})})
    ExpectConfigRefusal(With(Llama(), {{"eos_token_id", value}}), "eos_token_id");
  EXPECT_TRUE(Parse(With(Llama(), {{"eos_token_id", Json::array()}})).eos_tokens.empty());
}

TEST(Config, RefusesTextThatIsNoConfig) {
  for (const char* text : {"", "{", "[]", "3", "null", "{\"hidden_size\": 1e999}", "{\"a\": \"\xff\"}"})
    EXPECT_TRUE(ConfigRefusal(std::string(text)).starts_with("config.json: ")) << text;
  const std::string twice = R"({"hidden_size": 64, "hidden_size": 32})";
  EXPECT_NE(ConfigRefusal(twice).find("duplicate key hidden_size"), std::string::npos);
  const std::string deep = R"({"hidden_size": )" + std::string(1 << 20, '[');
  EXPECT_NE(ConfigRefusal(deep).find("nested"), std::string::npos);
  EXPECT_THROW(LoadConfig("/nonexistent/config.json"), Error);
}

}  // namespace
}  // namespace shiftrt
