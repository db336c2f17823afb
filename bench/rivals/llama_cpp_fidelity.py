#!/usr/bin/env python3
"""Compares the perplexity and the fidelity of a GGUF file as llama-perplexity and as shiftrt compute them.

    pip install numpy safetensors
    bench/rivals/llama_cpp_fidelity.py --tools llama.cpp/build/bin --shiftrt build/release/bin/shiftrt \\
        --original model.gguf --variant out-gguf/model.gguf --text wiki.test.raw

llama-perplexity (built from llama.cpp's source, target llama-perplexity) divides the text into chunks of --context tokens and
scores the second half of each: PPL of both files, and KL(original || variant) with --kl-divergence. The figures of shiftrt
are those of its logits for the same tokens (`shiftrt dump --logits`). llama.cpp multiplies quantised matrices with
activations that it rounds to 8 bits, and stores the original's log-probabilities in 16 bits. The model must put no BOS token
before a text. The exit status is 1 where a perplexity differs by more than --tolerance (0.5%).
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from provenance import provenance

FIGURES = {  # ours, and the line of llama-perplexity
    "perplexity, original": r"Mean PPL\(base\)\s*:\s*([\d.]+)",
    "perplexity, variant": r"Mean PPL\(Q\)\s*:\s*([\d.]+)",
    "mean KLD": r"Mean\s+KLD:\s*([\d.]+)",
    "median KLD": r"Median\s+KLD:\s*([\d.]+)",
    "99% KLD": r"99\.0%\s+KLD:\s*([\d.]+)",
    "mean delta p, %": r"Mean\s+Δp:\s*(-?[\d.]+)",
    "RMS delta p, %": r"RMS Δp\s*:\s*([\d.]+)",
    "same top p, %": r"Same top p:\s*([\d.]+)",
}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]}: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def logits_of(options, model, tokens, work):
    out = work / "logits.safetensors"
    (work / "tokens").write_text(" ".join(map(str, tokens)))
    run(options.shiftrt, "dump", "--model", model, "--tokens", work / "tokens", "--logits", "--out", out)
    return load_file(out)["logits"]


def ours(options, work):
    text = options.text.read_text(encoding="utf-8")
    part = work / "text"
    part.write_text(text[: 12 * options.chunks * options.context], encoding="utf-8")
    ids = [int(word) for word in run(options.shiftrt, "tokenize", "--model", options.original, "--ids", "--text", part).split()]
    divergences, p_original, p_variant, same = [], [], [], []
    for chunk in range(options.chunks):
        tokens = ids[chunk * options.context : (chunk + 1) * options.context]
        rows = slice(options.context // 2, options.context - 1)
        targets = np.array(tokens[options.context // 2 + 1 :])
        p, q = (log_softmax(logits_of(options, model, tokens, work)[rows]) for model in (options.original, options.variant))
        divergences.append((np.exp(p) * (p - q)).sum(axis=1))
        p_original.append(p[np.arange(len(targets)), targets])
        p_variant.append(q[np.arange(len(targets)), targets])
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    divergences, p_original, p_variant, same = map(np.concatenate, (divergences, p_original, p_variant, same))
    change = 100 * (np.exp(p_variant) - np.exp(p_original))
    values = [np.exp(-p_original.mean()), np.exp(-p_variant.mean()), divergences.mean(), np.median(divergences),
              np.quantile(divergences, 0.99), change.mean(), np.sqrt((change**2).mean()), 100 * same.mean()]
    return dict(zip(FIGURES, map(float, values)))


def theirs(options, work):
    common = ["-f", options.text, "-c", options.context, "-b", options.context, "--chunks", options.chunks]
    tool, base = options.tools / "llama-perplexity", work / "base"
    run(tool, "-m", options.original, *common, "--kl-divergence-base", base)
    said = run(tool, "-m", options.variant, *common, "--kl-divergence-base", base, "--kl-divergence")
    found = {}
    for name, pattern in FIGURES.items():
        match = re.search(pattern, said)
        if not match:
            raise SystemExit(f"llama-perplexity printed no {name}:\n{said[-3000:]}")
        found[name] = float(match[1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True, help="the directory of llama-perplexity")
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--original", type=Path, required=True)
    parser.add_argument("--variant", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--context", type=int, default=512, help="tokens of a chunk")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=0.005, help="largest relative difference of a perplexity")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        figures = {"shiftrt": ours(options, Path(work)), "llama.cpp": theirs(options, Path(work))}
    for name in FIGURES:
        print(f"{name:22} shiftrt {figures['shiftrt'][name]:10.4f}   llama.cpp {figures['llama.cpp'][name]:10.4f}")
    if options.json:
        settings = {"original": options.original.name, "variant": options.variant.name, "text": options.text.name,
                    "context": options.context, "chunks": options.chunks}
        options.json.write_text(json.dumps(provenance() | settings | figures, indent=1) + "\n")
    apart = [abs(figures["shiftrt"][name] / figures["llama.cpp"][name] - 1) for name in list(FIGURES)[:2]]
    sys.exit(max(apart) > options.tolerance)


if __name__ == "__main__":
    main()
