#!/usr/bin/env python3
"""Compares what llama.cpp and shiftrt compute from the same GGUF file: number of tokens, probabilities and greedy text.

    pip install xllamacpp numpy safetensors
    bench/rivals/llama_cpp_gguf.py --shiftrt build/release/bin/shiftrt --gguf out-gguf/model.gguf --text heldout.txt

xllamacpp is a package with a built llama.cpp. For several beginnings of the text, llama.cpp gives the probabilities of the
likeliest next tokens; they are compared with the softmax of shiftrt's logits. llama.cpp multiplies quantised matrices with
activations that it quantises to 8 bits, and stores keys and values in float16, so that only F32, F16 and BF16 files can
agree closely; the limit is --tolerance. The exit status is 1 where a difference is larger or the greedy text differs.
"""
import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xllamacpp
from safetensors.numpy import load_file

from provenance import provenance

CANDIDATES = 20  # likeliest tokens that are compared per position


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def open_llama(path, context):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = context, 1, False
    params.n_batch = params.n_ubatch = context
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds to float16
    return xllamacpp.Server(params)


def complete(server, **request):
    answer = server.handle_completions(request | {"cache_prompt": False, "temperature": 0.0})
    if "error" in answer:
        raise SystemExit(f"llama.cpp: {answer['error']}")
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="its beginning is used, at most --tokens tokens")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step", type=int, default=16, help="compare after every so many tokens")
    parser.add_argument("--greedy", type=int, default=32, help="length of the greedy continuation")
    parser.add_argument("--tolerance", type=float, default=1e-2, help="largest difference of a log-probability")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    text = options.text.read_text()[: 3 * options.tokens]  # some tokens fewer or more
    with tempfile.TemporaryDirectory() as work:
        beginning, logits_file = Path(work, "text"), Path(work, "logits.safetensors")
        beginning.write_text(text)
        ids = [int(word) for word in run(options.shiftrt, "tokenize", "--model", options.gguf, "--ids", "--bos", "--text", beginning).split()]
        server = open_llama(options.gguf, len(ids) + options.greedy + 8)
        tokens = complete(server, prompt=text, n_predict=1)["usage"]["prompt_tokens"]
        same_count = tokens == len(ids)
        ids = ids[: options.tokens]
        run(options.shiftrt, "dump", "--model", options.gguf, "--tokens", " ".join(map(str, ids)), "--logits", "--out",
            logits_file)
        logits = load_file(logits_file)["logits"].astype(np.float64)
        log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

        worst, best_differ = 0.0, 0
        lengths = list(range(options.step, len(ids) + 1, options.step))
        for length in lengths:
            answer = complete(server, prompt=ids[:length], n_predict=1, n_probs=CANDIDATES)
            candidates = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            ours = log_probabilities[length - 1]
            worst = max([worst] + [abs(c["logprob"] - ours[c["id"]]) for c in candidates])
            best_differ += int(np.argmax(ours)) != candidates[0]["id"]

        prompt = text[:200].rsplit(" ", 1)[0]
        greedy = complete(server, prompt=prompt, n_predict=options.greedy)["choices"][0]["text"]
        mine = run(options.shiftrt, "generate", "--model", options.gguf, "--prompt", prompt, "--max-tokens", options.greedy,
                   "--quiet").removeprefix(prompt).removesuffix("\n")
    result = provenance() | {
        "llama.cpp": f"xllamacpp {importlib.metadata.version('xllamacpp')}",
        "file": options.gguf.name, "tokens": len(ids), "positions": len(lengths), "same_number_of_tokens": same_count,
        "largest_difference": worst, "likeliest_token_differs": best_differ, "same_greedy_text": greedy == mine,
    }
    print(json.dumps(result, indent=2))
    if greedy != mine:
        print(f"llama.cpp: {greedy!r}\nshiftrt:   {mine!r}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if worst <= options.tolerance and same_count and greedy == mine else 1


if __name__ == "__main__":
    sys.exit(main())
