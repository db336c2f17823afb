#!/usr/bin/env python3
"""Compares a training step of shiftrt with PyTorch's: same model, shapes and threads.

    pip install torch==2.15.0 transformers==5.23.0 peft
    bench/rivals/finetune.py --shiftrt build/release/bin/shiftrt --model SmolLM2-135M-Instruct --rounds 3 --json result.json
    bench/rivals/finetune.py ... --all --loss kl --batch 4 --length 256 --settings float32,autocast,autocast+compile
    bench/rivals/finetune.py ... --last 3
    SHIFTRT_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 bench/rivals/finetune.py ...

Both train with AdamW on random tokens, --batch sequences of --length tokens per step: LoRA on all projections, with --last N
the last N blocks, or with --all every parameter; with the cross entropy, or with the divergence from the original model,
whose pass is part of the step. Each round starts shiftrt and then PyTorch in each of --settings, and each takes one step that
is not counted and then --steps steps, because the speed of a shared machine drifts. A setting whose process fails is left out
and named. The settings of PyTorch are joined by "+": float32 is its default, "autocast" computes products in bfloat16
(torch.autocast), "compile" uses torch.compile, and "checkpointing" computes activations again backwards. shiftrt runs with
--products auto, and its frozen weights have the type of the checkpoint. The table has the medians over the rounds, the medians
of the ratios of the rounds, and the peak resident memory of each process.
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

# The variables that lower the instruction set of shiftrt, and of PyTorch and the libraries that it multiplies with.
INSTRUCTION_SETS = ("SHIFTRT_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def train(args):
    """Runs in one process of the rival; prints a line of JSON."""
    import torch
    import transformers
    settings = args.worker.split("+")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    model = load()
    teacher = load().eval().requires_grad_(False) if args.loss == "kl" else None
    if "checkpointing" in settings:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if args.last:
        model.requires_grad_(False)
        model.model.layers[-args.last:].requires_grad_(True)
    elif not args.all:
        import peft
        versions["peft"] = peft.__version__
        model = peft.get_peft_model(model, peft.LoraConfig(r=args.rank, lora_alpha=16, target_modules="all-linear"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.length))

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in settings):
            if teacher is None:
                return model(input_ids=tokens, labels=tokens).loss
            with torch.no_grad():
                target = torch.log_softmax(teacher(input_ids=tokens).logits[:, :-1].float(), -1)
            own = torch.log_softmax(model(input_ids=tokens).logits[:, :-1].float(), -1)
            return torch.nn.functional.kl_div(own.flatten(0, 1), target.flatten(0, 1), reduction="batchmean",
                                              log_target=True)

    if "compile" in settings:
        loss = torch.compile(loss)
    seconds = []
    for _ in range(args.steps + 1):
        start = time.perf_counter()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": statistics.median(seconds[1:]), "first_seconds": seconds[0],
                      "peak_resident_bytes": peak_bytes(),
                      "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad), **versions}))


def run_theirs(args, settings):
    command = [sys.executable, __file__, "--worker", settings, "--model", args.model, "--loss", args.loss]
    for name in ("threads", "rank", "batch", "length", "steps"):
        command += [f"--{name}", str(getattr(args, name))]
    if args.all:
        command.append("--all")
    command += ["--last", str(args.last)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None


def run_ours(args, scratch):
    result = scratch / "ours.json"
    command = [args.shiftrt, "bench", "train", "--model", args.model, "--dtype", args.dtype, "--loss", args.loss, "--quiet",
               "--products", args.products, "--rounds", str(args.steps), "--json", result]
    if args.memory:
        command += ["--memory", args.memory]
    for name in ("threads", "rank", "batch", "length", "pass_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    if args.all:
        command.append("--all")
    if args.last:
        command += ["--layers", f"last:{args.last}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt")
    parser.add_argument("--model", required=True, help="a directory that both programs read")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--all", action="store_true", help="train every parameter instead of LoRA")
    parser.add_argument("--last", type=int, default=0, help="train so many last blocks instead of LoRA")
    parser.add_argument("--loss", choices=["ce", "kl"], default="ce")
    parser.add_argument("--products", default="auto", help="of shiftrt: auto, float32 or bfloat16")
    parser.add_argument("--dtype", default="auto", help="of shiftrt's frozen weights; auto: as stored")
    parser.add_argument("--memory", help="of shiftrt: of kept activations")
    parser.add_argument("--settings", default="float32", help="of PyTorch, with commas between them")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--pass-tokens", type=int, default=2048, help="of shiftrt: tokens of a pass")
    parser.add_argument("--steps", type=int, default=1, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return train(args)
    from provenance import provenance
    names = args.settings.split(",")
    runs = {"shiftrt": [], **{name: [] for name in names}}
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            runs["shiftrt"].append(run_ours(args, Path(scratch)))
            for name in list(names):
                theirs = run_theirs(args, name)
                if theirs is not None:
                    runs[name].append(theirs)
                    continue
                print(f"PyTorch, {name}: its process failed, and this setting is left out", file=sys.stderr)
                failed.append(name)
                names.remove(name)
                del runs[name]
    tokens = args.batch * args.length
    speed = {name: [tokens / one["seconds"] for one in all_] for name, all_ in runs.items()}
    memory = {name: max(one["peak_resident_bytes"] for one in all_) for name, all_ in runs.items()}
    ratio = {name: statistics.median(a / b for a, b in zip(speed["shiftrt"], speed[name])) for name in names}
    print(f"{'':<34}{'tokens/s':>10}{'peak MB':>10}{'shiftrt is faster by':>22}{'memory':>8}")
    for name in runs:
        times = f"{ratio[name]:>22.2f}{memory['shiftrt'] / memory[name]:>8.2f}" if name in ratio else ""
        label = name if name == "shiftrt" else f"PyTorch, {name}"
        print(f"{label:<34}{statistics.median(speed[name]):>10.1f}{memory[name] / 1e6:>10.0f}{times}")
    if args.json:
        args.json.write_text(json.dumps(
            {**provenance(), "instruction_sets": {name: os.environ[name] for name in INSTRUCTION_SETS if name in os.environ},
             "model": Path(args.model).name, "threads": args.threads, "all": args.all, "last": args.last, "loss": args.loss,
             "products": args.products, "dtype": args.dtype, "memory": args.memory, "rank": args.rank, "batch": args.batch, "length": args.length,
             "pass_tokens": args.pass_tokens, "runs": runs, "failed": failed, "tokens_per_second": speed, "ratio": ratio,
             "peak_resident_bytes": memory}, indent=2) + "\n")


if __name__ == "__main__":
    main()
