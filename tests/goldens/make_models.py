#!/usr/bin/env python3
"""Makes tests/goldens/models: logits and hidden states of tiny random models, computed by transformers in float32.

    pip install torch==2.6.0 transformers==5.23.0 safetensors numpy   # "gemma" and the families after it: transformers==5.24.0
    python3 make_models.py models [NAME...]

The weights are not stored. The tests compute them by the rule at the top of models/random_checkpoint.cc (seed 1). Each
model NAME has NAME/config.json and NAME/golden.safetensors. The latter contains, for the last `rows` positions, tokens,
logits, and hidden.0 (the output of the embedding) to hidden.L (the output of each block before the final norm). Some also
contain logits_bf16, the logits of a run of transformers in bfloat16.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

BASE = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 97, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "attention_bias": False}
# The settings that real checkpoints have at 4096 are small here, so that a window, a cap and a scale show.
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "sliding_window": None, "original_max_position_embeddings": 256}
GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_hidden_layers": 4, "head_dim": 16,
          "num_key_value_heads": 2, "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
          "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0,
          "sliding_window": 6, "tie_word_embeddings": True}
STARCODER2 = {"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "rms_norm_eps": None,
              "norm_epsilon": 1e-5, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
              "intermediate_size": 192, "use_bias": True, "sliding_window": 7, "tie_word_embeddings": True,
              "rope_theta": 100000.0}
NEMOTRON = {"architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "rms_norm_eps": None, "norm_eps": 1e-5,
            "num_key_value_heads": 2, "intermediate_size": 192, "hidden_act": "relu2", "partial_rotary_factor": 0.5}
COHERE = {"architectures": ["CohereForCausalLM"], "model_type": "cohere", "rms_norm_eps": None, "layer_norm_eps": 1e-5,
          "num_key_value_heads": 2, "logit_scale": 0.25, "use_qk_norm": False, "tie_word_embeddings": True,
          "bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}
COHERE2 = {**COHERE, "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "use_qk_norm": None,
           "num_hidden_layers": 5, "rope_theta": 50000.0, "sliding_window": 6,
           "sliding_window_pattern": 4}
CONFIGS = {
    "llama2": LLAMA,
    "llama3_tied": {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 500000.0,
                    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "llama3_new_style": {**LLAMA, "num_key_value_heads": 1, "rope_theta": None, "torch_dtype": None, "dtype": "float32",
                         "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                             "original_max_position_embeddings": 32}},
    "llama_linear": {**LLAMA, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}},
    "llama_yarn": {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                             "original_max_position_embeddings": 64}},
    "llama_bias": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama_wide_heads": {**LLAMA, "head_dim": 80, "num_attention_heads": 2, "num_key_value_heads": 1},
    "llama_odd": {**LLAMA, "hidden_size": 50, "intermediate_size": 43, "num_attention_heads": 5,
                  "num_key_value_heads": 1, "vocab_size": 101},
    "llama_long": {**LLAMA, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rows": 4, "length": 700},
    "mistral": {**MISTRAL, "num_key_value_heads": 2},
    "mistral_window": {**MISTRAL, "num_key_value_heads": 2, "sliding_window": 5},
    "phi3": {**PHI3, "num_key_value_heads": 2, "sliding_window": 7},
    "phi3_tied": {**PHI3, "tie_word_embeddings": True},
    "gemma2": GEMMA2,
    "gemma2_layer_types": {**GEMMA2, "attention_bias": True, "tie_word_embeddings": False,
                           "final_logit_softcapping": None, "layer_types": ["full_attention", "sliding_attention",
                                                                           "sliding_attention", "full_attention"]},
    "starcoder2": STARCODER2,
    "starcoder2_erf": {**STARCODER2, "hidden_act": "gelu", "use_bias": False, "sliding_window": None,
                       "tie_word_embeddings": False},
    "nemotron": NEMOTRON,
    "nemotron_bias": {**NEMOTRON, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "cohere": COHERE,
    "cohere2": COHERE2,
    "cohere2_layer_types": {**COHERE2, "attention_bias": True, "tie_word_embeddings": False, "num_hidden_layers": 3,
                            "sliding_window_pattern": None,
                            "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "qwen2_window": {**QWEN2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen1.5": QWEN2,
    "qwen2_tied": {**QWEN2, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5": {**QWEN2, "num_key_value_heads": 2},
    "qwen3": {**QWEN3, "num_key_value_heads": 2},
    "qwen3_tied": {**QWEN3, "num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": True},
}
# Families of 2025. As above, windows, local bases, factors and multipliers are small enough to show.
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 16,
          "num_key_value_heads": 2, "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
          "query_pre_attn_scalar": 20, "sliding_window": 6, "tie_word_embeddings": True, "rope_theta": 1000000.0,
          "rope_local_base_freq": 100.0, "sliding_window_pattern": 3, "attn_logit_softcapping": None,
          "final_logit_softcapping": None}
MINISTRAL3 = {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 16,
              "num_key_value_heads": 2, "rope_theta": None,
              "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                                  "original_max_position_embeddings": 8, "max_position_embeddings": 256,
                                  "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                  "llama_4_scaling_beta": 0.1}}
OLMO2 = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rms_norm_eps": 1e-6, "rope_theta": 500000.0}
OLMO3 = {**OLMO2, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 4,
         "sliding_window": 5}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_key_value_heads": 2,
           "rms_norm_eps": 1e-6, "rope_theta": 5000000.0, "tie_word_embeddings": True, "no_rope_layer_interval": 2,
           "use_sliding_window": False, "sliding_window": None, "pad_token_id": 0}
GRANITE = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "num_key_value_heads": 2,
           "attention_multiplier": 0.2, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
           "residual_multiplier": 0.22, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}
GRANITE4 = {**GRANITE, "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
            "mlp_bias": None, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 88,
            "position_embedding_type": "rope", "mamba_n_heads": 4, "layer_types": ["full_attention"] * 3}
GLM4 = {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "num_key_value_heads": 2, "head_dim": 16,
        "partial_rotary_factor": 0.5, "attention_bias": True, "pad_token_id": 0}
SEED_OSS = {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "num_key_value_heads": 2, "head_dim": 16,
            "attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6,
            "rope_scaling": {"rope_type": "default"}}
EXAONE4 = {"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "num_hidden_layers": 4,
           "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 4}
ERNIE = {"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "num_key_value_heads": 2, "head_dim": 16,
         "rope_theta": 500000.0, "use_bias": False, "tie_word_embeddings": True}
PHI_LONG = {**PHI3, "num_key_value_heads": 2, "original_max_position_embeddings": 16, "tie_word_embeddings": True}
CONFIGS.update({
    "gemma3": GEMMA3,
    "gemma3_rope_parameters": {
        **GEMMA3, "rope_theta": None, "rope_local_base_freq": None, "sliding_window_pattern": None,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}},
    "mistral_small": {**MISTRAL, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
                      "rope_theta": 100000000.0},
    "ministral3": MINISTRAL3,
    "olmo2": OLMO2,
    "olmo2_grouped": {**OLMO2, "num_key_value_heads": 2, "attention_bias": True},
    "olmo3": {**OLMO3, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
                                        "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}},
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "granite4": GRANITE4,
    "granite4_nope": {**GRANITE4, "position_embedding_type": "nope", "logits_scaling": 3.0},
    "phi3_longrope": {**PHI_LONG, "length": 12,
                      "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.1],
                                       "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 20.0]}},
    "phi4_mini_longrope": {**PHI_LONG, "length": 24, "partial_rotary_factor": 0.75, "head_dim": None,
                           "num_attention_heads": 3, "num_key_value_heads": 1,
                           "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.1],
                                            "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 20.0]}},
    "glm": {**GLM4, "architectures": ["GlmForCausalLM"], "model_type": "glm"},
    "glm4": GLM4,
    "seed_oss": SEED_OSS,
    "exaone4": EXAONE4,
    "exaone4_full": {**EXAONE4, "num_hidden_layers": 3, "sliding_window": None, "sliding_window_pattern": None,
                     "layer_types": ["full_attention"] * 3},
    "ernie4_5": ERNIE,
})
# Families added later.
GEMMA = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1,
         "hidden_act": "gelu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
ARCEE = {"architectures": ["ArceeForCausalLM"], "model_type": "arcee", "num_key_value_heads": 2, "hidden_act": "relu2",
         "intermediate_size": 192, "head_dim": 12}
CONFIGS.update({
    "gemma": GEMMA,
    "vaultgemma": {**GEMMA2, "architectures": ["VaultGemmaForCausalLM"], "model_type": "vaultgemma"},
    "ministral": {**MISTRAL, "architectures": ["MinistralForCausalLM"], "model_type": "ministral", "head_dim": 16,
                  "num_key_value_heads": 2, "sliding_window": 6,
                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "arcee": {**ARCEE, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                                        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0}},
    "arcee_bias": {**ARCEE, "attention_bias": True, "mlp_bias": True},
    "jais2": {**ARCEE, "architectures": ["Jais2ForCausalLM"], "model_type": "jais2", "rms_norm_eps": None,
              "layer_norm_eps": 1e-5},
    "cwm": {**LLAMA, "architectures": ["CwmForCausalLM"], "model_type": "cwm", "num_hidden_layers": 5, "head_dim": 16,
            "num_key_value_heads": 2, "sliding_window": 5, "rope_theta": None,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    "hyperclovax": {**GRANITE, "architectures": ["HyperCLOVAXForCausalLM"], "model_type": "hyperclovax",
                    "logits_scaling": 0.125, "use_post_norm": True, "tie_word_embeddings": False},
    "hyperclovax_plain": {**GRANITE, "architectures": ["HyperCLOVAXForCausalLM"], "model_type": "hyperclovax",
                          "logits_scaling": 1.0, "attention_multiplier": None, "use_post_norm": False},
})
# Mixtures of experts. One has an MLP in some layers, as the numbers say, or as the list says.
QWEN3_MOE = {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 2,
             "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True,
             "decoder_sparse_step": 1, "mlp_only_layers": [], "max_window_layers": 3, "use_sliding_window": False}
CONFIGS.update({
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe_mixed": {**QWEN3_MOE, "norm_topk_prob": False, "num_hidden_layers": 4, "decoder_sparse_step": 2,
                        "mlp_only_layers": [3], "attention_bias": True},
    "mixtral": {**BASE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_key_value_heads": 2,
                "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "router_aux_loss_coef": 0.02},
    "olmoe": {**BASE, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_key_value_heads": 2,
              "num_experts": 6, "num_experts_per_tok": 4, "intermediate_size": 32, "norm_topk_prob": False},
})
# Heads of different widths, and decays from 0.998 to nearly 0 per token (the rule of A_log).
QWEN35 = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 16,
          "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "attention_bias": False, "rope_theta": None,
          "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
          "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
          "linear_num_key_heads": 2, "linear_num_value_heads": 4, "attn_output_gate": True, "mtp_num_hidden_layers": 1,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                              "mrope_section": [1, 1, 0], "mrope_interleaved": True}}
CONFIGS.update({
    "qwen3_5": QWEN35,
    "qwen3_5_long": {**QWEN35, "rows": 4, "length": 150},
    "qwen3_5_tied": {**QWEN35, "num_attention_heads": 2, "num_key_value_heads": 1, "attention_bias": True,
                     "layer_types": None, "full_attention_interval": 2, "linear_conv_kernel_dim": 3,
                     "linear_num_key_heads": 3, "linear_num_value_heads": 3, "tie_word_embeddings": True},
})
# Mixtures with a shared expert; some layers have an MLP or a window, as their numbers say.
SHARED = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
QWEN2_MOE = {**QWEN2, **SHARED, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
             "num_key_value_heads": 2, "norm_topk_prob": False, "decoder_sparse_step": 1, "max_window_layers": 3,
             "output_router_logits": False, "router_aux_loss_coef": 0.001}
QWEN3_NEXT = {**QWEN35, **SHARED, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
              "linear_key_head_dim": 12, "linear_num_value_heads": 6, "attn_output_gate": None, "mtp_num_hidden_layers": None,
              "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1], "rope_theta": 10000000,
              "partial_rotary_factor": 0.25, "rope_parameters": None, "rope_scaling": None}
CONFIGS.update({
    "qwen2_moe": QWEN2_MOE,
    "qwen2_moe_windows": {**QWEN2_MOE, "num_hidden_layers": 4, "norm_topk_prob": True, "decoder_sparse_step": 2,
                          "use_sliding_window": True, "sliding_window": 5, "qkv_bias": False},
    "qwen3_next": QWEN3_NEXT,
    "qwen3_next_long": {**QWEN3_NEXT, "rows": 4, "length": 150, "layer_types": None, "full_attention_interval": 2,
                        "mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3_5_moe": {**QWEN35, **SHARED, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
                    "intermediate_size": None},
})
# Attention sinks, biases of routers and experts, and a unit whose limits are small enough to show.
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 4, "head_dim": 16,
           "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 3, "experts_per_token": 3,
           "intermediate_size": 24, "attention_bias": True, "sliding_window": 6, "swiglu_alpha": 1.25,
           "swiglu_limit": 0.5, "initial_context_length": 32, "output_router_logits": False,
           "router_aux_loss_coef": 0.9, "rope_theta": 150000,
           "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
                            "beta_slow": 1.0, "truncate": False}}
CONFIGS.update({
    "gpt_oss": GPT_OSS,
    "gpt_oss_long": {**GPT_OSS, "rows": 4, "length": 150, "num_hidden_layers": 3, "num_key_value_heads": 1,
                     "swiglu_alpha": None, "swiglu_limit": None, "attention_bias": False, "sliding_window": 70,
                     "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                     "rope_scaling": {"rope_type": "default"}},
})
# Norms of rotated queries and keys, and a base that alpha stretches.
HUNYUAN = {"architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "num_key_value_heads": 2,
           "head_dim": 16, "tie_word_embeddings": True, "use_qk_norm": True, "use_cla": False, "attention_bias": False,
           "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                            "mscale_all_dim": 0.0}}
CONFIGS.update({
    "hunyuan": HUNYUAN,
    "hunyuan_bias": {**HUNYUAN, "head_dim": 12, "attention_bias": True, "tie_word_embeddings": False, "rope_scaling": None},
})
# xIELU, whose numbers differ by layer; and a RoPE of its own where none is given.
APERTUS = {"architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_act": "xielu", "num_key_value_heads": 2,
           "intermediate_size": 192, "qk_norm": True, "post_norm": False, "rope_theta": 12000000.0,
           "rope_scaling": {"rope_type": "llama3", "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 128}}
CONFIGS.update({
    "apertus": APERTUS,
    "apertus_plain": {**APERTUS, "tie_word_embeddings": True, "rope_theta": None, "rope_scaling": None},
})
# Short convolutions beside attention; the units of an MLP are two thirds of the number, rounded up.
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 5, "num_key_value_heads": 2,
        "rms_norm_eps": None, "norm_eps": 1e-5, "hidden_act": None, "intermediate_size": None, "block_ff_dim": 132,
        "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True, "conv_L_cache": 3,
        "conv_bias": False, "full_attn_idxs": [1, 4], "tie_word_embeddings": None, "tie_embedding": True,
        "rope_theta": 1000000.0}
CONFIGS.update({
    "lfm2": LFM2,
    "lfm2_long": {**LFM2, "rows": 4, "length": 150, "num_hidden_layers": 4, "conv_L_cache": 5, "full_attn_idxs": None,
                  "layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False,
                  "tie_embedding": False},
})
BFLOAT16 = ("llama2", "qwen2_tied", "qwen3", "phi3", "gemma2", "gemma3", "olmo2", "granite", "glm4",
            "starcoder2", "cohere2", "nemotron")
NULLS = ("sliding_window", "final_logit_softcapping", "attn_logit_softcapping")  # where null says something else than nothing
SEED = 1
MASK = (1 << 64) - 1


def random_tensor(name, shape):
    """The rule of models/random_checkpoint.cc."""
    key = 0xCBF29CE484222325
    for c in name.encode():
        key = ((key ^ c) * 0x100000001B3) & MASK
    key ^= (SEED * 0x9E3779B97F4A7C15) & MASK
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    n = (z >> np.uint64(56)).astype(np.int64) - 128
    if name.endswith(".bias"):
        values = n * 2.0 ** -10
    elif name.endswith(".A_log"):
        values = (n - 64) * 2.0 ** -5
    elif name.endswith((".act_fn.beta", ".act_fn.eps")):
        values = n * 0 + (0.5 if name.endswith("beta") else -2.0 ** -20)
    elif len(shape) == 1:
        values = 1.0 + np.floor(n / 16) / 16
    else:
        values = n * 2.0 ** -(6 + shape[-1].bit_length() // 2)
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def random_state(name, shape, model_type):
    """A tensor of transformers, which has the experts of a layer together, from those of checkpoints."""
    mixtral = model_type == "mixtral"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    stem, experts, matrix = name.rpartition(".experts.")
    if not experts or model_type == "gpt_oss":  # whose checkpoints have them together, too
        return random_tensor(name, shape)
    names = {"gate_up_proj": ("w1", "w3") if mixtral else ("gate_proj", "up_proj"),
             "down_proj": ("w2",) if mixtral else ("down_proj",)}[matrix]
    rows = (shape[1] // len(names), shape[2])
    return torch.stack([torch.cat([random_tensor(f"{stem}.experts.{expert}.{part}.weight", rows) for part in names])
                        for expert in range(shape[0])])


def run(model, tokens):
    """The logits, and the input and output of each block."""
    hidden = []
    hooks = [model.model.layers[0].register_forward_pre_hook(
        lambda m, args, kwargs: hidden.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True)]
    for layer in model.model.layers:
        hooks.append(layer.register_forward_hook(
            lambda m, args, out: hidden.append(out[0] if isinstance(out, tuple) else out)))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, [h.reshape(-1, h.shape[-1]) for h in hidden]


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or CONFIGS:
        config = {k: v for k, v in {**BASE, **CONFIGS[name]}.items() if v is not None or k in NULLS}
        rows, length = config.pop("rows", None), config.pop("length", 20)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager",
                                                 torch_dtype=torch.float32).eval()
        tied = config.get("tie_embedding", config.get("tie_word_embeddings"))
        state = {k: random_state(k, tuple(v.shape), config["model_type"]) for k, v in model.state_dict().items()
                 if not (k == "lm_head.weight" and tied)}
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
        if tied:
            model.tie_weights()
        tokens = torch.arange(length) * 7 % 89 + 1
        tokens[3::5] = (tokens[3::5] * 5 + 2) % 97
        logits, hidden = run(model, tokens)
        rows = rows or length
        golden = {"tokens": tokens.float(), "logits": logits[-rows:].contiguous()}
        for i, h in enumerate(hidden):
            golden[f"hidden.{i}"] = h[-rows:].contiguous()
        if name in BFLOAT16:
            golden["logits_bf16"] = run(model.to(torch.bfloat16), tokens)[0].float()[-rows:].contiguous()
        save_file(golden, folder / "golden.safetensors")
        print(name, tuple(logits.shape), f"{logits.abs().max():.3f}")


if __name__ == "__main__":
    main()
