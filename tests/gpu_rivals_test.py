#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the rivals of `shiftrt bench gpu` on a CPU with a tiny model. Exits with 77, which CTest counts as skipped, if PyTorch,
transformers or peft is not installed.

    gpu_rivals_test.py WORK
"""
import importlib.util
import json
import os
import subprocess
import sys

RIVALS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "rivals")
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}


def run(work, script, *options):
    out = f"{work}/result.json"
    subprocess.run([sys.executable, f"{RIVALS}/{script}", "--config", f"{work}/tiny.json", "--device", "cpu", "--json", out, *options],
                   check=True)
    return json.load(open(out))


def main():
    missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: no {', '.join(missing)}")
        sys.exit(77)
    work = os.path.abspath(sys.argv[1])
    os.makedirs(work, exist_ok=True)
    json.dump(CONFIG, open(f"{work}/tiny.json", "w"))

    sizes = ("--prefill", "64", "--context", "16", "--decode", "4", "--rounds", "1")
    for compiled in (False, True):
        result = run(work, "transformers_gpu.py", *sizes, *(["--compile"] if compiled else []))
        assert result["compiled"] == compiled
        assert set(result["decode_tokens_per_second"]) == {"original", "pruned"}
        assert min([*result["decode_tokens_per_second"].values(), result["prefill_tokens_per_second"]]) > 0, result
    result = run(work, "torch_gpu.py", "--tokens", "64")
    names = [figure["name"] for figure in result["figures"]]
    assert result["failed"] == {} and len(names) == 8 and names[-1] == "LoRA step, 64 tokens", result
    flops = {figure["name"]: figure["flops"] for figure in result["figures"]}
    assert flops["gate and up, 64 tokens"] == 2 * 64 * 64 * 256
    assert flops["math, 1 x 64 tokens"] == 4 * (64 * 65 / 2) * 4 * 16
    # Blocks: q and o of 64 x 64, k and v of 32 x 64, three of 128 x 64; and the head of 512 x 64, which is the embedding.
    assert flops["LoRA step, 64 tokens"] == 4 * 64 * (4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64) + 512 * 64), flops


main()
