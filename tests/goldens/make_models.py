#!/usr/bin/env python3
"""Makes tests/goldens/models: logits and hidden states of tiny random models, computed by transformers in float32.

    pip install torch==2.6.0 transformers==5.23.0 safetensors numpy
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
    "qwen2_window": {**QWEN2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen1.5": QWEN2,
    "qwen2_tied": {**QWEN2, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5": {**QWEN2, "num_key_value_heads": 2},
    "qwen3": {**QWEN3, "num_key_value_heads": 2},
    "qwen3_tied": {**QWEN3, "num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": True},
}
BFLOAT16 = ("llama2", "qwen2_tied", "qwen3", "phi3", "gemma2")
NULLS = ("sliding_window", "final_logit_softcapping")  # where null says something else than nothing
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
    if name.endswith("norm.weight"):
        values = 1.0 + np.floor(n / 16) / 16
    elif name.endswith(".bias"):
        values = n * 2.0 ** -10
    else:
        values = n * 2.0 ** -(6 + shape[1].bit_length() // 2)
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


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
        state = {k: random_tensor(k, tuple(v.shape)) for k, v in model.state_dict().items()
                 if not (k == "lm_head.weight" and config["tie_word_embeddings"])}
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
        if config["tie_word_embeddings"]:
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
