#!/usr/bin/env python3
"""Measures several GGUF files of one model in llama.cpp: perplexity of a text, and the speed of prompt and generation.

    pip install xllamacpp==2026.10.11549 numpy
    bench/rivals/llama_cpp_depth.py --shiftrt build/release/bin/shiftrt --text wiki.test.raw --json result.json \\
        original=original.gguf pruned=pruned.gguf repaired=repaired.gguf

The files have one tokenizer, that of the first; shiftrt encodes the text with it. The perplexity is that of `shiftrt ppl`:
disjoint windows of 2,048 tokens or the model's context, the first token of which is not predicted. shiftrt's own is
measured beside it. In each round, every file is opened, reads a prompt of --prefill tokens at once, and then --decode
tokens one at a time, with llama.cpp's default settings. Every second round goes through the files backwards, because the
speed of a shared machine drifts. The table has the medians, and the medians of the ratios to the first file in the same
round.
"""
import argparse
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from llama_cpp_library import LlamaCpp
from provenance import provenance

AT_ONCE = 256  # tokens of one call of llama.cpp


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def perplexity(opened, ids, window):
    total, count = 0.0, 0
    for start in range(0, len(ids) - window + 1, window):
        tokens = ids[start : start + window]
        opened.forget()
        for first in range(0, window, AT_ONCE):
            opened.decode(tokens[first : first + AT_ONCE], first, outputs="all")
            for i, target in enumerate(tokens[first + 1 : first + AT_ONCE + 1]):
                logits = opened.row(i).astype(np.float64)
                top = logits.max()
                total += float(top + np.log(np.exp(logits - top).sum()) - logits[target])
                count += 1
    return math.exp(total / count)


def named(word):
    name, _, path = word.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{word!r}: expected NAME=FILE")
    return name, Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=named, metavar="NAME=FILE")
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4096, help="of the text; 0 measures no perplexity")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    llama = LlamaCpp()
    most = max(options.tokens, options.prefill + options.decode)
    with tempfile.TemporaryDirectory() as work:
        beginning = Path(work, "text")
        beginning.write_text(options.text.read_text()[: 8 * most])
        ids = [int(word) for word in run(options.shiftrt, "tokenize", "--model", options.files[0][1], "--ids", "--text", beginning).split()]
        measured = {}
        for name, path in options.files:
            one = measured[name] = {"file": path.name, "bytes": path.stat().st_size}
            if options.tokens:
                report = Path(work, "ppl.json")
                run(options.shiftrt, "ppl", "--model", path, "--text", beginning, "--text-tokens", options.tokens, "--json", report,
                    "--quiet")
                ours = json.loads(report.read_text())
                one["perplexity_shiftrt"], window = ours["perplexity"], ours["window"]
                with llama.open(path, window, options.threads) as opened:
                    one["perplexity"] = perplexity(opened, ids[: options.tokens], window)
            print(json.dumps(one), file=sys.stderr)

    prompt, later = ids[: options.prefill], ids[options.prefill : options.prefill + options.decode]
    rounds = []
    for number in range(options.rounds):
        times = {}
        for name, path in options.files if number % 2 == 0 else reversed(options.files):
            with llama.open(path, options.prefill + options.decode, options.threads, exact=False) as opened:
                opened.decode(prompt)  # reads the file
                opened.forget()
                seconds = opened.decode(prompt)
                each = [opened.decode([token], options.prefill + i) for i, token in enumerate(later)]
            times[name] = {"prompt": len(prompt) / seconds, "generation": len(later) / sum(each)}
        rounds.append(times)
        print(json.dumps(times), file=sys.stderr)

    first = options.files[0][0]
    for name, one in measured.items():
        for key in ("prompt", "generation") if rounds else ():
            one[key] = statistics.median(times[name][key] for times in rounds)
            one[f"{key}_ratio"] = statistics.median(times[name][key] / times[first][key] for times in rounds)
        print(f"{name:28} {one['bytes'] / 1e6:8.1f} MB", *(f"{key} {one[key]:.2f}" for key in one if key not in ("file", "bytes")))
    result = provenance() | {"llama.cpp": f"xllamacpp {importlib.metadata.version('xllamacpp')}", "text": options.text.name,
                             "tokens": options.tokens, "prefill": options.prefill,
                             "decode": options.decode, "threads": options.threads, "files": measured, "rounds": rounds}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
