#!/usr/bin/env python3
"""Compares the rounding of `shiftrt export --quantize` with that of llama-quantize, with and without its importance matrix.

    bench/rivals/llama_cpp_rounding.py --tools llama.cpp/build/bin --shiftrt build/release/bin/shiftrt --model SmolLM2-135M-Instruct \\
        --calib c4.jsonl:32x512 --text wiki.test.raw --work rounding --json result.json

The tools are llama-imatrix and llama-quantize, built from llama.cpp's source without changes. Both programs round the same
bfloat16 weights, and read as many tokens of the same calibration file: shiftrt takes its samples from documents in random
order, llama-imatrix reads the documents from the first one on, one after the other. `shiftrt ppl --against` measures every file:
perplexity, and the divergence from the original. Finished steps are kept in the directory of --work.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

from provenance import provenance

FIGURES = ("perplexity", "perplexity_original", "tokens", "mean_kld", "mean_kld_error", "median_kld", "kld_99", "same_top_p",
           "same_top_p_error")


def once(path, *words):
    """Runs a command that writes a file, unless the file is there. The command gets a temporary name for it in the place of OUT."""
    if not path.exists():
        partial = path.with_name("partial-" + path.name)
        done = subprocess.run([str(word).replace("OUT", str(partial)) for word in words], capture_output=True, text=True)
        if done.returncode != 0 or not partial.exists():
            raise SystemExit(f"{' '.join(map(str, words))}: status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        partial.rename(path)
    return path


def plain_text(source, path):
    """Writes the documents of a file of JSON lines as one text, as llama-imatrix reads it."""
    if not path.exists():
        path.write_text("\n\n".join(json.loads(line)["text"] for line in source.open() if line.strip()))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True, help="the directory of llama-imatrix and llama-quantize")
    parser.add_argument("--shiftrt", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--calib", required=True, metavar="FILE:SAMPLESxLENGTH", help="JSON lines, each with a text")
    parser.add_argument("--text", type=Path, required=True, help="the held-out text")
    parser.add_argument("--tokens", type=int, default=8192, help="of the held-out text")
    parser.add_argument("--types", nargs="+", default=["q4_k_m", "q4_0", "q3_k_m", "q2_k"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    source, _, samples = options.calib.rpartition(":")
    if not re.fullmatch(r"\d+x\d+", samples):
        parser.error(f"--calib {options.calib}: expected FILE:SAMPLESxLENGTH")
    count, length = map(int, samples.split("x"))
    options.work.mkdir(parents=True, exist_ok=True)
    quantize = options.tools / "llama-quantize"

    def exported(name, *words):
        directory = once(options.work / name, options.shiftrt, "export", "--model", options.model, "--format", "gguf", "--quiet",
                         "--save", "OUT", *words)
        return directory / "model.gguf"

    original = exported("original", "--dtype", "bfloat16")
    matrix = once(options.work / "importance.gguf", options.tools / "llama-imatrix", "-m", original, "-f",
                  plain_text(Path(source), options.work / "calibration.txt"), "-c", length, "--chunks", count, "--no-ppl", "-o", "OUT")
    rows = []
    for mixture in options.types:
        kind = mixture.upper()
        files = {
            "llama-quantize": once(options.work / f"{mixture}-llama.gguf", quantize, original, "OUT", kind),
            "llama-quantize --imatrix": once(options.work / f"{mixture}-llama-importance.gguf", quantize, "--imatrix", matrix, original, "OUT",
                                             kind),
            "shiftrt": exported(mixture, "--quantize", mixture, "--calib", options.calib),
        }
        for program, path in files.items():
            name = f"{mixture}-{program.replace(' ', '')}.json"
            measured = json.loads(once(options.work / name, options.shiftrt, "ppl", "--model", path, "--against", options.model, "--text",
                                       options.text, "--text-tokens", options.tokens, "--quiet", "--json", "OUT").read_text())
            rows.append({"type": mixture, "program": program, "bytes": path.stat().st_size} | {key: measured[key] for key in FIGURES})
            row = rows[-1]
            print(f"| `{mixture}`, {program} | {row['bytes'] / 1e6:.0f} | {row['perplexity']:.2f} | {row['mean_kld']:.4f} ± "
                  f"{row['mean_kld_error']:.4f} | {100 * row['same_top_p']:.1f} |", flush=True)
    if options.json:
        build = subprocess.run([options.tools / "llama-bench", "--version"], capture_output=True, text=True)
        result = provenance() | {"llama.cpp": (re.search(r"version: (.*)", build.stdout + build.stderr) or ["", "?"])[1],
                                 "model": options.model.name, "calibration": Path(source).name + ":" + samples,
                                 "text": options.text.name, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
