#!/usr/bin/env python3
"""Measures the decoding and prefill speed of PyTorch and transformers, for comparison with `shiftrt bench gpu`.

    bench/rivals/transformers_gpu.py --config Llama-3.1-8B/config.json --json result.json

The models have random bfloat16 weights of the given shape: the original, and one with a quarter fewer layers. The script
decodes one sequence greedily, alternates between the models, and prints medians. It runs transformers as it is or, with
--compile, with a static cache and torch.compile, whose kernels are launched as one graph. scripts/gpu-run
starts it and records its failure where a package is missing.
"""
import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

from provenance import provenance


def make_model(path, layers_removed, device):
    config = AutoConfig.from_pretrained(path.parent if path.name == "config.json" else path)
    config.num_hidden_layers -= layers_removed
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:config.num_hidden_layers]
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Runner:
    def __init__(self, name, model, args):
        self.name, self.model, self.args = name, model, args
        self.step = torch.compile(model, mode="reduce-overhead", fullgraph=True) if args.compile else model
        self.decoded, self.prefilled = [], []

    def cache(self):
        if not self.args.compile:
            return DynamicCache()
        return StaticCache(config=self.model.config, max_cache_len=self.args.context + self.args.decode + 8)

    def seconds(self, body):
        synchronize(self.args.device)
        start = time.perf_counter()
        body()
        synchronize(self.args.device)
        return time.perf_counter() - start

    def prefill(self):
        tokens = torch.randint(self.model.config.vocab_size, (1, self.args.prefill), device=self.args.device)
        taken = self.seconds(lambda: self.model(tokens, logits_to_keep=1))
        self.prefilled.append(self.args.prefill / taken)

    def decode(self):
        tokens = torch.randint(self.model.config.vocab_size, (1, self.args.context), device=self.args.device)
        cache = self.cache()
        logits = self.model(tokens, past_key_values=cache, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)

        def steps(count):
            nonlocal token
            for _ in range(count):
                token = self.step(token, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
                token.item()  # as a program does that shows its text

        steps(3)  # compiles and records
        self.decoded.append(self.args.decode / self.seconds(lambda: steps(self.args.decode)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="config.json of a Llama or Qwen model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="decode in a static cache under torch.compile")
    parser.add_argument("--prefill", type=int, default=4096)
    parser.add_argument("--context", type=int, default=128, help="tokens cached when decoding begins")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    layers = json.loads(args.config.read_text())["num_hidden_layers"]
    with torch.inference_mode():
        runners = [Runner("original", make_model(args.config, 0, args.device), args),
                   Runner("pruned", make_model(args.config, layers // 4, args.device), args)]
        for _ in range(args.rounds + 1):  # the first one warms up
            runners[0].prefill()
            for runner in runners:
                runner.decode()
    speeds = {r.name: statistics.median(r.decoded[1:]) for r in runners}
    result = {**provenance(), "torch": torch.__version__, "transformers": transformers.__version__,
              "config": args.config.parent.name, "compiled": args.compile, "decode_tokens_per_second": speeds,
              "prefill_tokens_per_second": statistics.median(runners[0].prefilled[1:])}
    for name, speed in speeds.items():
        print(f"decode at {args.context}, {name:24} {speed:8.1f} tokens/s")
    print(f"prefill of {args.prefill}: {result['prefill_tokens_per_second']:.0f} tokens/s")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
