#!/usr/bin/env python3
"""Compares the recovery of a pruned model with the same training in PyTorch: divergence on held-out text over seconds.

    pip install torch==2.15.0 transformers==5.23.0
    bench/rivals/recover.py --shiftrt build/release/bin/shiftrt --model SmolLM2-135M-Instruct --layers 12-18 --text c4.jsonl \\
      --budget 40000 --settings float32,compile --json result.json

Both begin with the model without --layers, unrepaired, because the adapters of shiftrt are no part of a model of PyTorch. A second
training of shiftrt begins with the repaired model (`--correction joint --lra 64`), as its users do; its seconds begin with those of
the repair. All train the kept blocks for --budget tokens, as `shiftrt finetune --preset recover --loss both` does: half
cross entropy and half divergence from the original model, AdamW at 1e-4 with a cosine, 4 sequences of at most 256 tokens per step.
PyTorch makes as many steps as shiftrt needs for the tokens. The sequences are the first 250 tokens of the documents of --text; the
last --heldout of them are held out, and the divergence on them is measured before the first step and after every tenth of the steps.
The two programs draw the order of the sequences by themselves. PyTorch pads a step to its longest sequence, or to 256 tokens where it is compiled. The seconds are those of the
training steps; those of the measurements and of compiling are left out. The table has the divergence after each tenth. Below it
stands how long each takes to the largest of the final divergences, between two measurements by a straight line.

The settings of PyTorch are joined by "+": float32 is its default, "autocast" computes products in bfloat16 (torch.autocast), and
"compile" uses torch.compile. A setting whose process fails is left out and named.
"""
import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

LENGTH, BATCH, RATE, WARMUP, DECAY, CLIP = 256, 4, 1e-4, 0.03, 0.01, 1.0
CUT = 250  # tokens of a document; a text that is encoded again may have a few more


def layer_numbers(text):
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def train(args):
    """Runs in one process of the rival; prints a line of JSON."""
    import time

    import torch
    import transformers
    settings = args.worker.split("+")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)

    def sequences(file):
        rows = (json.loads(line)["text"] for line in file.open())
        return [tokens[:LENGTH] for tokens in (tokenizer(row)["input_ids"] for row in rows) if len(tokens) > 1]

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    teacher, model = load().eval().requires_grad_(False), load()
    removed = set(layer_numbers(args.layers))
    model.model.layers = torch.nn.ModuleList(block for i, block in enumerate(model.model.layers) if i not in removed)
    model.config.num_hidden_layers = len(model.model.layers)
    model.config.use_cache = False
    model.model.embed_tokens.requires_grad_(False)
    model.lm_head.requires_grad_(False)
    model.model.norm.requires_grad_(False)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}], lr=RATE)

    def batch_of(rows):
        longest = LENGTH if "compile" in settings else max(map(len, rows))
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            tokens[i, :len(row)], mask[i, :len(row)] = torch.tensor(row), 1
        return tokens, mask

    def losses(tokens, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in settings):
            with torch.no_grad():
                target = torch.log_softmax(teacher(input_ids=tokens, attention_mask=mask).logits[:, :-1].float(), -1)
            own = torch.log_softmax(model(input_ids=tokens, attention_mask=mask).logits[:, :-1].float(), -1)
        counted = mask[:, 1:].bool()
        divergence = torch.nn.functional.kl_div(own, target, reduction="none", log_target=True).sum(-1)[counted]
        entropy = -own.gather(-1, tokens[:, 1:, None])[..., 0][counted]
        return divergence.mean(), entropy.mean()

    if "compile" in settings:
        losses = torch.compile(losses)
    heldout = sequences(args.scratch / "heldout.jsonl")

    def measure():
        sum_, count = 0.0, 0
        with torch.no_grad():
            for i in range(0, len(heldout), BATCH):
                rows = heldout[i:i + BATCH]
                predicted = sum(len(row) - 1 for row in rows)
                sum_ += losses(*batch_of(rows))[0].item() * predicted
                count += predicted
        return sum_ / count

    texts = sequences(args.scratch / "train.jsonl")
    if "compile" in settings:
        sum(losses(*batch_of(texts[:BATCH]))).backward()
        optimizer.zero_grad()
    steps = args.steps
    warmup = max(1, round(WARMUP * steps))
    marks = {math.ceil(steps * i / 10) for i in range(11)}
    curve, seconds, tokens = [{"tokens": 0, "seconds": 0.0, "divergence": measure()}], 0.0, 0
    order = []
    for step in range(steps):
        while len(order) < BATCH:
            order += torch.randperm(len(texts)).tolist()
        rows, order = [texts[i] for i in order[:BATCH]], order[BATCH:]
        start = time.perf_counter()
        share = (step + 1) / warmup if step < warmup else \
            0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * share
        divergence, entropy = losses(*batch_of(rows))
        (0.5 * divergence + 0.5 * entropy).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        tokens += sum(map(len, rows))
        if step + 1 in marks:
            curve.append({"tokens": tokens, "seconds": seconds, "divergence": measure()})
    print(json.dumps({"curve": curve, "steps": steps, "parameters": sum(p.numel() for p in trained),
                      "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                      "torch": torch.__version__, "transformers": transformers.__version__}))


def run_theirs(args, scratch, settings, steps):
    command = [sys.executable, __file__, "--worker", settings, "--scratch", scratch, "--model", args.model, "--layers", args.layers]
    command += ["--threads", str(args.threads), "--steps", str(steps)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None


def peak_of(command):
    """Runs a command of shiftrt and returns its peak of resident bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {' '.join(command)}")
    return 1024 * usage.ru_maxrss


def run_ours(args, scratch, name, *repair):
    """Prunes, repairs by the options `repair`, and trains."""
    common = ["--threads", str(args.threads), "--quiet"]
    peaks = [peak_of([args.shiftrt, "run", "--model", args.model, "--prune", f"layers={args.layers}", *repair, "--text",
                      f"{scratch}/heldout.jsonl", "--text-tokens", "256", "--max-tokens", "1", *common, "--save", f"{scratch}/{name}",
                      "--json", f"{scratch}/{name}.json"]),
             peak_of([args.shiftrt, "finetune", "--model", f"{scratch}/{name}", "--preset", "recover", "--loss", "both",
                      "--length", str(LENGTH), "--batch", str(BATCH), "--budget", f"tokens={args.budget}", "--calib",
                      f"{scratch}/train.jsonl", "--validation", f"{scratch}/heldout.jsonl:{args.heldout}", *common, "--products",
                      args.products,
                      *(["--memory", args.memory] if args.memory else []), "--save", f"{scratch}/{name}-recovered", "--json",
                      f"{scratch}/{name}-recovered.json"])]
    before = json.loads((scratch / f"{name}.json").read_text())["seconds"]["fit"]
    found = json.loads((scratch / f"{name}-recovered.json").read_text())["trainings"][0]
    # The JSON has the seconds of all steps together, which are of one size.
    curve = [{"tokens": found["tokens"] * one["step"] / found["steps"],
              "seconds": before + found["seconds"] * one["step"] / found["steps"], "divergence": one["loss"]}
             for one in found["validation"]]
    return {"curve": curve, "steps": found["steps"], "parameters": found["parameters"], "repair_seconds": before,
            "peak_resident_bytes": max(peaks)}


def seconds_to(curve, divergence):
    """The seconds after which the curve has this divergence; None if it stays above."""
    if curve[0]["divergence"] <= divergence:
        return curve[0]["seconds"]
    for before, after in zip(curve, curve[1:]):
        if after["divergence"] <= divergence:
            fall = before["divergence"] - after["divergence"]
            share = 1 if fall <= 0 else (before["divergence"] - divergence) / fall
            return before["seconds"] + share * (after["seconds"] - before["seconds"])
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt")
    parser.add_argument("--model", required=True, help="a directory that both programs read")
    parser.add_argument("--layers", required=True, help="that are removed, such as 12-18")
    parser.add_argument("--text", type=Path, help=".jsonl with a document in the field `text` of each line")
    parser.add_argument("--budget", type=int, default=40000, help="tokens to train on")
    parser.add_argument("--heldout", type=int, default=48, help="documents that are held out")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--products", default="auto", help="of shiftrt: auto, float32 or bfloat16")
    parser.add_argument("--memory", help="for the activations that shiftrt's training keeps, such as 200MB")
    parser.add_argument("--settings", default="float32", help="of PyTorch, with commas between them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return train(args)
    if not args.shiftrt or not args.text:
        parser.error("--shiftrt and --text are needed")
    from provenance import provenance
    runs, failed = {}, []
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        import transformers
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        texts = [tokenizer.decode(tokenizer(json.loads(line)["text"])["input_ids"][:CUT]) for line in args.text.open()]
        for name, some in (("train", texts[:-args.heldout]), ("heldout", texts[-args.heldout:])):
            (scratch / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
        runs["shiftrt"] = run_ours(args, scratch, "pruned", "--correction", "none", "--calib", f"{scratch}/train.jsonl:4x{LENGTH}")
        runs["shiftrt, repaired first"] = run_ours(args, scratch, "repaired", "--correction", "joint", "--lra", "64", "--calib",
                                                   f"{scratch}/train.jsonl:128x{LENGTH}")
        for name in args.settings.split(","):
            found = run_theirs(args, scratch, name, runs["shiftrt"]["steps"])
            if found is None:
                print(f"PyTorch, {name}: its process failed, and this setting is left out", file=sys.stderr)
                failed.append(name)
            else:
                runs[f"PyTorch, {name}"] = found
    print(f"{'':<10}" + "".join(f"{name:>28}" for name in runs))
    for tenth in range(11):
        cells = "".join(f"{one['seconds']:>18.0f} s {one['divergence']:>8.4f}"
                        for one in (run["curve"][min(tenth, len(run["curve"]) - 1)] for run in runs.values()))
        print(f"{10 * tenth:>8} %{cells}")
    target = max(run["curve"][-1]["divergence"] for run in runs.values())
    reached = {name: seconds_to(run["curve"], target) for name, run in runs.items()}
    ours = [name for name in runs if name.startswith("shiftrt")]
    for name, run in runs.items():
        ratios = "" if name in ours else "".join(f"; {own} takes {reached[own] / reached[name]:.2f} of it" for own in ours)
        print(f"{name}: {reached[name]:.0f} s to a divergence of {target:.4f}{ratios}; {run['peak_resident_bytes'] / 1e6:.0f} MB")
    if args.json:
        args.json.write_text(json.dumps(
            {**provenance(), "model": Path(args.model).name, "layers": args.layers, "text": args.text.name, "budget": args.budget,
             "heldout": args.heldout, "threads": args.threads, "products": args.products, "runs": runs, "failed": failed,
             "target": target, "seconds_to_target": reached}, indent=2) + "\n")


if __name__ == "__main__":
    main()
