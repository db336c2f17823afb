#!/usr/bin/env python3
"""Compares files that llama-quantize rounds, with and without its importance matrix, with those of `shiftrt --quantize`.

    bench/rivals/llama_cpp_quantize.py --tools llama.cpp/build/bin --shiftrt build/release/bin/shiftrt --model model-bf16.gguf \\
        --calib calibration.txt --text wiki.test.raw --types q4_0,q4_k_m,q3_k_m

llama-quantize and llama-imatrix are built from llama.cpp's source. Both programs read the first --tokens tokens of the same
calibration text (shiftrt: 32 samples of 512 tokens of the whole text where it is longer). shiftrt measures all files:
perplexity, and KL(original || file) over --text-tokens tokens of the held-out text.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from provenance import provenance


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
    return done.stdout


def measured(options, path, work):
    out = work / "measured.json"
    run(options.shiftrt, "ppl", "--model", path, "--against", options.model, "--text", options.text, "--text-tokens",
        options.text_tokens, "--quiet", "--json", out)
    found = json.loads(out.read_text())
    keys = ("perplexity", "mean_kld", "mean_kld_error", "same_top_p", "same_top_p_error")
    return {"megabytes": round(path.stat().st_size / 1e6, 1)} | {key: found[key] for key in keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True, help="the directory of llama-quantize and llama-imatrix")
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file of 16 or 32 bits")
    parser.add_argument("--calib", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--text-tokens", type=int, default=8192)
    parser.add_argument("--types", default="q4_0,q4_k_m,q3_k_m,q2_k")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        matrix = work / "imatrix.gguf"
        run(options.tools / "llama-imatrix", "-m", options.model, "-f", options.calib, "-c", 512, "--chunks",
            options.tokens // 512, "-o", matrix)
        for kind in options.types.split(","):
            for name, words in (("llama-quantize", []), ("llama-quantize, importance matrix", ["--imatrix", matrix])):
                file = work / "theirs.gguf"
                run(options.tools / "llama-quantize", *words, options.model, file, kind.upper())
                rows.append({"type": kind, "program": name} | measured(options, file, work))
            for rounding in ("nearest", "importance", "feedback"):
                run(options.shiftrt, "export", "--model", options.model, "--format", "gguf", "--quantize", f"{kind},{rounding}",
                    "--calib", f"{options.calib}:{options.tokens // 512}x512", "--save", work / "ours", "--quiet")
                rows.append({"type": kind, "program": f"shiftrt, {rounding}"} | measured(options, work / "ours/model.gguf", work))
                subprocess.run(["rm", "-rf", work / "ours"], check=True)
            for row in rows[-5:]:
                print(f"{kind:8} {row['program']:34} {row['megabytes']:8.1f} MB  perplexity {row['perplexity']:8.2f}  "
                      f"mean KL {row['mean_kld']:.4f} ± {row['mean_kld_error']:.4f}", flush=True)
            if options.json:
                settings = {"model": options.model.name, "calib": options.calib.name, "tokens": options.tokens,
                            "text": options.text.name, "text_tokens": options.text_tokens}
                options.json.write_text(json.dumps(provenance() | settings | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
