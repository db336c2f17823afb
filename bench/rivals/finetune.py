#!/usr/bin/env python3
"""Compares a step of LoRA fine-tuning in shiftrt and in PyTorch with peft: same model, shapes, threads and type.

    pip install torch==2.6.0 transformers==5.23.0 peft
    bench/rivals/finetune.py --shiftrt build/release/bin/shiftrt --model SmolLM2-135M-Instruct --rounds 3 --json result.json

Both train LoRA on all projections in float32 with AdamW, on random tokens: a batch of --batch sequences of --length tokens
per step. Each round starts both programs, one after the other, and each takes one step that is not counted and then
--steps steps, because the speed of a shared machine drifts. The table gives the medians over the rounds, the median of the
ratios of the rounds, and the peak resident memory of each process. PyTorch keeps all activations, its fastest way; with
--checkpointing it computes them again backwards, as shiftrt does.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def train(args):
    """Runs in one process of the rival; prints a line of JSON."""
    import peft
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    if args.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(r=args.rank, lora_alpha=16, target_modules="all-linear"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.length))
    seconds = []
    for _ in range(args.steps + 1):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": statistics.median(seconds[1:]), "peak_resident_bytes": peak_bytes(),
                      "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
                      "torch": torch.__version__, "peft": peft.__version__,
                      "transformers": transformers.__version__}))


def run_theirs(args):
    command = [sys.executable, __file__, "--worker", "--model", args.model]
    for name in ("threads", "rank", "batch", "length", "steps"):
        command += [f"--{name}", str(getattr(args, name))]
    if args.checkpointing:
        command.append("--checkpointing")
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def run_ours(args, scratch):
    result = scratch / "ours.json"
    subprocess.run([args.shiftrt, "bench", "train", "--model", args.model, "--dtype", "float32", "--threads",
                    str(args.threads), "--rank", str(args.rank), "--batch", str(args.batch), "--length",
                    str(args.length), "--pass-tokens", str(args.pass_tokens), "--rounds", str(args.steps), "--quiet",
                    "--json", result], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt")
    parser.add_argument("--model", required=True, help="a directory that both programs read")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--pass-tokens", type=int, default=2048, help="of shiftrt: tokens of a pass")
    parser.add_argument("--steps", type=int, default=1, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true", help="of PyTorch: activations are computed again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return train(args)
    from provenance import provenance
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            ours.append(run_ours(args, Path(scratch)))
            theirs.append(run_theirs(args))
    tokens = args.batch * args.length
    speed = [tokens / round_["seconds"] for round_ in ours], [tokens / round_["seconds"] for round_ in theirs]
    memory = [max(r["peak_resident_bytes"] for r in rounds) for rounds in (ours, theirs)]
    ratio = statistics.median(a / b for a, b in zip(*speed))
    print(f"{'':<24}{'tokens/s':>10}{'peak MB':>10}")
    for name, rates, peak in zip(("shiftrt", "PyTorch + peft"), speed, memory):
        print(f"{name:<24}{statistics.median(rates):>10.1f}{peak / 1e6:>10.0f}")
    print(f"{'ratio':<24}{ratio:>10.2f}{memory[0] / memory[1]:>10.2f}")
    if args.json:
        args.json.write_text(json.dumps(
            {**provenance(), "model": Path(args.model).name, "threads": args.threads, "rank": args.rank,
             "batch": args.batch, "length": args.length, "pass_tokens": args.pass_tokens,
             "checkpointing": args.checkpointing, "shiftrt": ours, "torch": theirs,
             "tokens_per_second": {"shiftrt": speed[0], "torch": speed[1]}, "ratio": ratio,
             "peak_resident_bytes": {"shiftrt": memory[0], "torch": memory[1]}}, indent=2) + "\n")


if __name__ == "__main__":
    main()
