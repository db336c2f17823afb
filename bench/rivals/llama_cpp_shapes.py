#!/usr/bin/env python3
"""Times shiftrt and llama.cpp on one GGUF file of random weights of a shape, in alternating rounds.

    pip install xllamacpp==2026.10.11549 numpy
    bench/rivals/llama_cpp_shapes.py --shiftrt build/release/bin/shiftrt --config bench/shapes/qwen3.5-0.8b.json --json result.json

A round reads a prompt of --prefill tokens, and continues --context tokens by --decode others, in both programs. Opening the file
does not count. The instructions of the package's llama.cpp are those of AVX2: a build for the machine reads prompts faster. The
table has medians, and the median and the range of the rounds' ratios.
"""
import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from llama_cpp_library import LlamaCpp
from provenance import provenance


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True).stdout


def shiftrt(options, model, work):
    report = work / "bench.json"
    run(options.shiftrt, "bench", "cpu", "--model", model, "--threads", options.threads, "--prefill", options.prefill,
        "--context", options.context, "--decode", options.decode, "--sequences", 1, "--rounds", 1, "--quiet", "--json", report)
    found = json.loads(report.read_text())
    return {"prefill": found["prefill_tokens_per_second"], "decode": found["decode_tokens_per_second"],
            "decode_floor": found["decode_floor"], "read_bandwidth": found["read_bandwidth"]}


def llama_cpp(options, library, model):
    tokens = [7919 * i % 1000 + 5 for i in range(max(options.prefill, options.context))]
    with library.open(model, options.prefill + options.context + options.decode, options.threads, exact=False,
                      tokenizer=False) as opened:
        opened.decode(tokens[:options.prefill])  # a warm-up
        opened.forget()
        prefill = options.prefill / opened.decode(tokens[:options.prefill])
        opened.forget()
        opened.decode(tokens[:options.context])
        seconds = sum(opened.decode([tokens[i % len(tokens)]], options.context + i) for i in range(options.decode))
    return {"prefill": prefill, "decode": options.decode / seconds}


def make_file(options, work):
    """Random weights of the shape, as a file of --dtype."""
    run(options.shiftrt, "bench", "cpu", "--config", options.config, "--save", work / "random", "--prefill", 8, "--decode", 1,
        "--rounds", 1, "--quiet")
    run(options.shiftrt, "export", "--model", work / "random", "--format", "gguf", "--dtype", options.dtype, "--save", work / "file")
    shutil.rmtree(work / "random")
    return work / "file" / "model.gguf"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--dtype", default="q8_0", help="type of the weights, as in shiftrt export")
    parser.add_argument("--prefill", type=int, default=256)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as work:
        model = make_file(options, Path(work))
        size = model.stat().st_size
        library = LlamaCpp()
        rounds = [{"shiftrt": shiftrt(options, model, Path(work)), "llama.cpp": llama_cpp(options, library, model)}
                  for _ in range(options.rounds)]
    print(f"{options.config.stem}, {options.dtype}, {size / 1e6:.0f} MB")
    for what in ("prefill", "decode"):
        ours, theirs = ([one[name][what] for one in rounds] for name in ("shiftrt", "llama.cpp"))
        ratios = [a / b for a, b in zip(ours, theirs)]
        print(f"{what:8} shiftrt {statistics.median(ours):7.1f}, llama.cpp {statistics.median(theirs):7.1f} tokens/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json:
        result = provenance() | {"llama.cpp": f"xllamacpp {importlib.metadata.version('xllamacpp')}, AVX2",
                                 "shape": options.config.stem, "dtype": options.dtype, "file_bytes": size,
                                 "threads": options.threads, "prefill": options.prefill, "context": options.context,
                                 "decode": options.decode, "rounds": rounds}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
