#!/usr/bin/env python3
"""Measures PyTorch's products, attention and a LoRA step, for comparison with `shiftrt bench gpu` and `bench train`.

    bench/rivals/torch_gpu.py --config Llama-3.1-8B/config.json --json result.json

Products are those of a block with --tokens rows in bfloat16. Attention is causal, by FlashAttention and by cuDNN, over one
sequence of --tokens, one four times as long, and eight short ones. The LoRA step trains rank 8 on all projections of a model
of random weights with peft and AdamW, eight sequences of an eighth of --tokens. Times are medians. A part that fails is left
out, and its error is recorded.
"""
import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

from provenance import provenance

WARMUPS, RUNS = 3, 15


def median_seconds(device, body, warmups=WARMUPS, runs=RUNS):
    def synchronize():
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    seconds = []
    for run in range(warmups + runs):
        synchronize()
        start = time.perf_counter()
        body()
        synchronize()
        if run >= warmups:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def figure(name, seconds, flops):
    print(f"{name:44} {seconds * 1e6:10.1f} us, {flops / seconds / 1e12:7.1f} TFLOP/s", flush=True)
    return {"name": name, "seconds": seconds, "flops": flops}


def products(config, args, random):
    heads_dim = config.num_attention_heads * head_dim(config)
    kv_dim = config.num_key_value_heads * head_dim(config)
    hidden, intermediate = config.hidden_size, config.intermediate_size
    shapes = {"queries, keys and values": (hidden, heads_dim + 2 * kv_dim), "output projection": (heads_dim, hidden),
              "gate and up": (hidden, 2 * intermediate), "down projection": (intermediate, hidden)}
    for name, (inputs, outputs) in shapes.items():
        x, w = random(args.tokens, inputs), random(outputs, inputs)
        seconds = median_seconds(args.device, lambda: torch.nn.functional.linear(x, w))
        yield figure(f"{name}, {args.tokens} tokens", seconds, 2 * args.tokens * inputs * outputs)


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def attention(config, args, random):
    on_gpu = args.device.startswith("cuda")
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION] if on_gpu else [SDPBackend.MATH]
    for sequences, length in [(1, args.tokens), (1, 4 * args.tokens), (8, args.tokens // 8)]:
        q = random(sequences, config.num_attention_heads, length, head_dim(config))
        k, v = (random(sequences, config.num_key_value_heads, length, head_dim(config)) for _ in range(2))
        pairs = sequences * config.num_attention_heads * length * (length + 1) / 2
        for backend in backends:
            attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True,
                                       enable_gqa=True)
            with sdpa_kernel(backend):
                seconds = median_seconds(args.device, attend)
            yield figure(f"{backend.name.lower()}, {sequences} x {length} tokens", seconds, 4 * pairs * head_dim(config))


def lora_step(config, args, _):
    import peft
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=args.device.startswith("cuda"))
    tokens = torch.randint(0, config.vocab_size, (8, args.tokens // 8), device=args.device)

    def step():
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = median_seconds(args.device, step, warmups=2, runs=5)
    # Forwards, and backwards for the inputs of the products, whose weights are frozen.
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2 and not p.requires_grad)
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.hidden_size  # the embedding table, of which rows are read
    yield {**figure(f"LoRA step, {tokens.numel()} tokens", seconds, 4 * weights * tokens.numel()), "peft": peft.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="config.json of a Llama or Qwen model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    config = AutoConfig.from_pretrained(args.config.parent if args.config.name == "config.json" else args.config)
    random = functools.partial(torch.randn, dtype=torch.bfloat16, device=args.device)
    result = {**provenance(), "torch": torch.__version__, "config": args.config.stem, "figures": [], "failed": {}}
    for part in (products, attention, lora_step):
        try:
            for found in part(config, args, random):
                result["figures"].append(found)
        except Exception as error:
            result["failed"][part.__name__] = f"{type(error).__name__}: {error}"
            print(f"{part.__name__} failed: {error}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
