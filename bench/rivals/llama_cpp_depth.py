#!/usr/bin/env python3
"""Measures several GGUF files of one model with llama.cpp's own tools: perplexity, and speed of prompt and generation.

    bench/rivals/llama_cpp_depth.py --tools llama.cpp/build/bin --text wiki.test.raw --json result.json \\
        original=original.gguf pruned=pruned.gguf repaired=repaired.gguf

The tools are llama-perplexity and llama-bench, built from llama.cpp's source without changes. llama-perplexity divides the
text into chunks of 512 tokens and scores the second half of each. In each round, llama-bench opens every file, reads a prompt
of --prefill tokens at once, and generates --decode tokens. Every second round goes through the files backwards, because the
speed of a shared machine drifts. The table has the medians, and the medians of the ratios to the first file in the same round.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from provenance import provenance

CHUNK = 512  # tokens


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]}: {done.stderr[-2000:]}")
    return done.stdout, done.stderr


def perplexity(options, path):
    """The perplexity of the text and its standard error."""
    words = "".join(run(options.tools / "llama-perplexity", "-m", path, "-f", options.text, "-c", CHUNK, "--chunks",
                        options.tokens // CHUNK, "-t", options.threads))
    found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", words)
    if not found:
        raise SystemExit(f"llama-perplexity -m {path}: no final estimate; it ended with: {words[-500:]}")
    return {"perplexity": float(found[1]), "perplexity_error": float(found[2])}


def speed(options, path):
    """Tokens per second of a prompt and of the generation."""
    tests = json.loads(run(options.tools / "llama-bench", "-m", path, "-p", options.prefill, "-n", options.decode, "-t",
                           options.threads, "-r", 1, "-o", "json")[0])
    return {"generation" if test["n_gen"] else "prompt": test["avg_ts"] for test in tests}, tests[0]["build_commit"]


def named(word):
    name, _, path = word.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{word!r}: expected NAME=FILE")
    return name, Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=named, metavar="NAME=FILE")
    parser.add_argument("--tools", type=Path, required=True, help="the directory of llama-perplexity and llama-bench")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8192, help="of the text; 0 measures no perplexity")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    measured = {name: {"file": path.name, "bytes": path.stat().st_size} for name, path in options.files}
    for name, path in options.files if options.tokens >= CHUNK else ():
        measured[name] |= perplexity(options, path)
        print(json.dumps({name: measured[name]}), file=sys.stderr)

    rounds, build = [], None
    for number in range(options.rounds):
        times = {}
        for name, path in options.files if number % 2 == 0 else reversed(options.files):
            times[name], build = speed(options, path)
        rounds.append(times)
        print(json.dumps(times), file=sys.stderr)

    first = options.files[0][0]
    for name, one in measured.items():
        for key in ("prompt", "generation") if rounds else ():
            one[key] = statistics.median(times[name][key] for times in rounds)
            one[f"{key}_ratio"] = statistics.median(times[name][key] / times[first][key] for times in rounds)
        print(f"{name:28} {one['bytes'] / 1e6:8.1f} MB", *(f"{key} {one[key]:.2f}" for key in one if key not in ("file", "bytes")))
    if options.json:
        settings = {key: getattr(options, key) for key in ("tokens", "prefill", "decode", "threads")}
        result = provenance() | {"llama.cpp": build, "text": options.text.name} | settings | {"files": measured, "rounds": rounds}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
