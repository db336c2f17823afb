#!/usr/bin/env python3
"""Compares the logits of llama.cpp on GGUF exports of small random models with those of transformers, family by family.

    pip install xllamacpp==2026.10.11549 torch transformers==5.23.0 numpy   # hunyuan: transformers==5.24.0
    bench/rivals/llama_cpp_families.py --shiftrt build/release/bin/shiftrt [NAME...]

The models are those of tests/goldens/make_models.py, with other random weights, and changed where llama.cpp has no place
for their settings (CHANGES). They are written in float32. llama.cpp takes its GELU from a table in float16, so that Gemma
and StarCoder 2 agree less closely; the limits are LIMIT and GELU_LIMIT, relative to the largest logit. The exit status is
1 where a difference is larger.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llama_cpp_library import LlamaCpp

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/goldens"))
import make_models

LIMIT, GELU_LIMIT = 1e-5, 1e-3
GEMMA = {"query_pre_attn_scalar": 16}
EXAONE_LAYERS = ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(64)]
FAR = {"original_max_position_embeddings": 512, "max_position_embeddings": 4096}
# Name: golden, changes, tokens, and the size of llama.cpp's context.
CASES = {name: (name, {}, 24, 256) for name in (
    "llama2", "llama3_tied", "llama_linear", "llama_yarn", "llama_bias", "llama_wide_heads", "mistral", "mistral_small",
    "qwen1.5", "qwen2_tied", "qwen2.5", "qwen3", "phi3_tied", "nemotron", "cohere", "cohere2", "ministral3", "olmo2", "olmo3",
    "granite", "granite4", "granite4_nope", "glm4", "seed_oss", "ernie4_5", "gemma", "arcee",
    "hunyuan", "apertus", "lfm2")}
CASES.update({
    "gemma2": ("gemma2", GEMMA, 24, 256),
    "gemma3": ("gemma3", GEMMA, 24, 256),
    "gemma3 of released order": ("gemma3", {**GEMMA, "num_hidden_layers": 8, "sliding_window_pattern": 6,
                                            "rope_local_base_freq": 10000.0}, 24, 256),
    "starcoder2": ("starcoder2", {"sliding_window": None}, 24, 256),
    "exaone4": ("exaone4_full", {"head_dim": 12}, 24, 256),
    "exaone4 with windows": ("exaone4", {"head_dim": 12, "num_hidden_layers": 64, "layer_types": EXAONE_LAYERS}, 24, 256),
    "glm": ("glm", {"head_dim": 12}, 24, 256),
    "smollm3": ("smollm3", {"num_hidden_layers": 8, "no_rope_layer_interval": 4}, 24, 256),
    "nemotron_bias": ("nemotron_bias", {"head_dim": 12}, 24, 256),
    "granite with biases": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, 24, 256),
    "phi3_longrope, short": ("phi3_longrope", FAR, 40, 256),
    "phi3_longrope, long": ("phi3_longrope", {}, 36, 256),
    "phi4_mini_longrope, short": ("phi4_mini_longrope", FAR, 40, 256),
    "phi4_mini_longrope, long": ("phi4_mini_longrope", {}, 36, 256),
    "ministral3 of 200 tokens": ("ministral3", {}, 200, 256),
    "apertus without a RoPE": ("apertus_plain", {"tie_word_embeddings": False}, 24, 256),
    "lfm2 of 150 tokens": ("lfm2_long", {"rows": None}, 150, 256),
    "gpt_oss": ("gpt_oss", {"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "rope_scaling": {"rope_type": "default"}}, 200, 256),
    "gpt_oss of other windows": ("gpt_oss_long", {"attention_bias": True, "rows": None}, 200, 256),
})


def random_model(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32,
                                             attn_implementation="eager").eval()
    around_zero = config["model_type"] in ("gemma", "gemma2", "gemma3_text", "nemotron")  # their norms add 1
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = torch.randn_like(tensor)
            if tensor.dim() == 1:
                values = values * 0.1 + (0 if around_zero or name.endswith("bias") else 1)
            else:
                values = values / tensor.shape[-1] ** 0.5 * (3 if "embed" in name else 1)
            tensor.copy_(values.bfloat16())
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", default="build/release/bin/shiftrt")
    parser.add_argument("names", nargs="*", default=list(CASES))
    options = parser.parse_args()
    llama, failed = LlamaCpp(), False
    for name in options.names:
        golden, changes, count, context = CASES[name]
        config = {**make_models.BASE, **make_models.CONFIGS[golden], **changes}
        config = {k: v for k, v in config.items() if k != "length" and (v is not None or k in make_models.NULLS)}
        with tempfile.TemporaryDirectory() as work:
            source, out = Path(work) / "model", Path(work) / "gguf"
            source.mkdir()
            model = random_model(source, config)
            subprocess.run([options.shiftrt, "export", "--model", source, "--format", "gguf", "--save", out], check=True,
                           capture_output=True)
            tokens = np.random.default_rng(1).integers(0, config["vocab_size"], count).tolist()
            with torch.no_grad():
                expected = model(torch.tensor([tokens])).logits[0].numpy()
            with llama.open(out / "model.gguf", context, tokenizer=False) as opened:
                found = opened.logits(tokens, config["vocab_size"])
        error = np.abs(found - expected).max() / np.abs(expected).max()
        gelu = "gelu" in str(config.get("hidden_act")) + str(config.get("hidden_activation"))
        failed |= not error <= (GELU_LIMIT if gelu else LIMIT)
        print(f"{name:28} {error:.1e}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
