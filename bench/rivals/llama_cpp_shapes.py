#!/usr/bin/env python3
"""Times shiftrt and llama.cpp on one GGUF file of random weights of a shape, in alternating rounds.

    bench/rivals/llama_cpp_shapes.py --shiftrt build/release/bin/shiftrt --llama-bench llama.cpp/build/bin/llama-bench \\
        --config bench/shapes/qwen3.5-0.8b.json --tokenizer SmolLM2-135M-Instruct --json result.json

llama.cpp opens no file without a tokenizer, so that the file gets that of --tokenizer, whose vocabulary may be smaller. A round
reads a prompt of --prefill tokens, and continues --context tokens by --decode others; both programs report tokens per second
without the time of opening the file. Build llama.cpp for the machine (GGML_NATIVE). The table has medians, and the median and
the range of the rounds' ratios. The floor of decoding is shiftrt's: the bytes that a token reads over the read bandwidth.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from provenance import provenance

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True).stdout


def shiftrt(options, model, work):
    report = work / "bench.json"
    run(options.shiftrt, "bench", "cpu", "--model", model, "--threads", options.threads, "--prefill", options.prefill,
        "--context", options.context, "--decode", options.decode, "--sequences", 1, "--rounds", 1, "--quiet", "--json", report)
    found = json.loads(report.read_text())
    return {"prefill": found["prefill_tokens_per_second"], "decode": found["decode_tokens_per_second"],
            "decode_floor": found["decode_floor"], "read_bandwidth": found["read_bandwidth"]}


def llama_bench(options, model):
    bench = (options.llama_bench, "-m", model, "-t", options.threads, "-r", 1, "-o", "json")
    prefill = json.loads(run(*bench, "-p", options.prefill, "-n", 0))
    decode = json.loads(run(*bench, "-p", 0, "-n", options.decode, "-d", options.context))
    return {"prefill": prefill[0]["avg_ts"], "decode": decode[0]["avg_ts"], "build": prefill[0]["build_commit"]}


def make_file(options, work):
    """Random weights of the shape, as a file of --dtype."""
    run(options.shiftrt, "bench", "cpu", "--config", options.config, "--save", work / "random", "--prefill", 8, "--decode", 1,
        "--rounds", 1, "--quiet")
    for name in TOKENIZER:
        shutil.copy(options.tokenizer / name, work / "random")
    run(options.shiftrt, "export", "--model", work / "random", "--format", "gguf", "--dtype", options.dtype, "--save", work / "file")
    shutil.rmtree(work / "random")
    return work / "file" / "model.gguf"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--llama-bench", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory with " + " and ".join(TOKENIZER))
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
        rounds = [{"shiftrt": shiftrt(options, model, Path(work)), "llama.cpp": llama_bench(options, model)}
                  for _ in range(options.rounds)]
    print(f"{options.config.stem}, {options.dtype}, {size / 1e6:.0f} MB")
    for what in ("prefill", "decode"):
        ours, theirs = ([one[name][what] for one in rounds] for name in ("shiftrt", "llama.cpp"))
        ratios = [a / b for a, b in zip(ours, theirs)]
        print(f"{what:8} shiftrt {statistics.median(ours):7.1f}, llama.cpp {statistics.median(theirs):7.1f} tokens/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json:
        result = provenance() | {"shape": options.config.stem, "dtype": options.dtype, "file_bytes": size,
                                 "threads": options.threads, "prefill": options.prefill, "context": options.context,
                                 "decode": options.decode, "rounds": rounds}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
