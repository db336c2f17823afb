#!/usr/bin/env python3
"""Compares the items per second of `shiftrt eval` and of lm-evaluation-harness on PyTorch: same weights, rows, threads.

    pip install lm-eval==0.4.13 torch==2.6.0 transformers==5.23.0
    shiftrt bench cpu --config Qwen2-1.5B/config.json --save DIR     # random weights of a shape; add its tokenizer
    bench/rivals/harness.py --shiftrt build/release/bin/shiftrt --model DIR --data DIR --limit 100 --json result.json

--data is the argument of `shiftrt eval --data`. The reference runs its own loop (batches padded to the longest request,
the head on every token) on local rows. The times include neither opening the model nor building the prompts. The two
programs alternate task by task, because the speed of a shared machine drifts.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/goldens"))
import make_eval
import torch
from lm_eval.models.huggingface import HFLM

from provenance import provenance

PAPER7 = "boolq,piqa,hellaswag,winogrande,arc_easy,arc_challenge,openbookqa"


def run_ours(args, name, scratch):
    result = scratch / "ours.json"
    subprocess.run([args.shiftrt, "eval", "--model", args.model, "--tasks", name, "--limit", str(args.limit), "--data",
                    args.data, "--threads", str(args.threads), "--products", args.products, "--journal",
                    scratch / "journal", "--quiet", "--json", result], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())["tasks"][0]


def run_theirs(lm, args, name):
    groups = [group for _, task in make_eval.reference_tasks(name, [args.data])
              for group in make_eval.instances(task, args.limit, 0)]
    start = time.perf_counter()
    make_eval.score(lm, groups, rolling=False)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tasks", default=PAPER7)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=8, help="the reference's batch size")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="the reference's")
    parser.add_argument("--products", default="float32", choices=["float32", "bfloat16"], help="shiftrt's")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounds = []
    with tempfile.TemporaryDirectory() as temporary:
        lm = HFLM(pretrained=str(args.model), dtype=args.dtype, device="cpu", batch_size=args.batch)
        for _ in range(args.rounds):
            row = {}
            for name in args.tasks.split(","):
                ours, seconds = run_ours(args, name, Path(temporary)), run_theirs(lm, args, name)
                row[name] = {"items": ours["items"], "ours": ours["seconds"], "theirs": seconds,
                             "tokens_requested": ours["tokens_requested"], "tokens_computed": ours["tokens_computed"],
                             "head_rows": ours["head_rows"]}
                print(f"{name}: {ours['items'] / ours['seconds']:.2f} and {ours['items'] / seconds:.2f} items/s",
                      file=sys.stderr)
            rounds.append(row)

    def rate(row, who, names):
        return sum(row[n]["items"] for n in names) / sum(row[n][who] for n in names)

    names = args.tasks.split(",")
    print(f"{'task':14}{'ours':>10}{'reference':>11}{'ratio':>8}  tokens computed / requested (items/s, medians)")
    for label, chosen in [(n, [n]) for n in names] + [("all", names)]:
        ours = statistics.median(rate(row, "ours", chosen) for row in rounds)
        theirs = statistics.median(rate(row, "theirs", chosen) for row in rounds)
        ratio = statistics.median(rate(row, "ours", chosen) / rate(row, "theirs", chosen) for row in rounds)
        tokens = [sum(rounds[0][n][key] for n in chosen) for key in ("tokens_computed", "tokens_requested")]
        print(f"{label:14}{ours:10.2f}{theirs:11.2f}{ratio:8.2f}  {tokens[0]} / {tokens[1]} = {tokens[0] / tokens[1]:.2f}")
    if args.json:
        args.json.write_text(json.dumps({**provenance(), "model": args.model.name, "threads": args.threads,
                                         "limit": args.limit, "batch": args.batch, "dtype": args.dtype, "products": args.products,
                                         "rounds": rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
