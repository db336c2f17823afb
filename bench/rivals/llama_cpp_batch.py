#!/usr/bin/env python3
"""Decodes several sequences together with shiftrt and with llama.cpp, in turns, and prints the ratio of their speeds.

    bench/rivals/llama_cpp_batch.py --model SmolLM2-135M --gguf model.gguf --batched-bench .../llama-batched-bench [--json FILE]

Both append random tokens to sequences that have --context tokens already and compute the logits of each; the times of
prompts are left out. shiftrt's figures are those of `shiftrt bench`, with its floor. The file for llama.cpp has the same
weights (`shiftrt export --format gguf`). Figures are medians over --rounds, each of which runs both programs. The program
llama-batched-bench of llama.cpp should be built for the machine (GGML_NATIVE). Without it, the package xllamacpp is used,
whose instructions are those of AVX2:

    pip install xllamacpp==2026.10.11549 torch transformers==5.23.0 numpy
    bench/rivals/llama_cpp_batch.py --model SmolLM2-135M --gguf model.gguf [--sequences 1,4,16] [--products bfloat16] [--json FILE]
"""
import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from provenance import provenance


class BatchedBench:
    """The program llama-batched-bench, which opens the model once per call."""

    def __init__(self, options, sequences):
        self.command = [options.batched_bench, "-m", options.gguf, "-t", str(options.threads), "-tb", str(options.threads),
                        "-c", str(sequences * (options.context + options.steps) + 64), "-npp", str(options.context),
                        "-ntg", str(options.steps), "-npl", str(sequences), "--output-format", "jsonl"]

    def tokens_per_second(self):
        out = subprocess.run(self.command, check=True, capture_output=True, text=True)
        lines = [line for line in (out.stdout + out.stderr).splitlines() if line.startswith('{"n_kv_max"')]
        return json.loads(lines[-1])["speed_tg"]

    def close(self):
        pass


class Sequences:
    """Sequences that the library llama.cpp decodes together in this process."""

    def __init__(self, llama, path, sequences, context, steps, threads):
        import numpy as np
        self.lib, self.sequences, self.context, self.steps = llama.lib, sequences, context, steps
        of_model = self.lib.llama_model_default_params()
        of_model.gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), of_model)
        if not self.model:
            raise SystemExit("llama.cpp does not load the file: " + "".join(llama.said)[-1000:])
        of_context = self.lib.llama_context_default_params()
        assert (of_context.n_batch, of_context.yarn_ext, of_context.type_k) == (2048, -1, 1), "another layout"
        of_context.n_ctx, of_context.n_seq_max = sequences * (context + steps + 64), sequences
        of_context.n_threads = of_context.n_threads_batch = threads
        self.run = self.lib.llama_init_from_model(self.model, of_context)
        random = np.random.default_rng(1)
        self.tokens = random.integers(0, 1000, (sequences, context + steps)).tolist()
        self.batch = self.lib.llama_batch_init(2048, 0, 1)
        self.lib.llama_get_memory.restype, self.lib.llama_get_memory.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        self.memory = self.lib.llama_get_memory(self.run)
        self.lib.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]

    def decode(self, places):
        """Appends tokens at (sequence, position), and computes the logits after those that end their sequence's list."""
        batch = self.batch
        for i, (sequence, position, scored) in enumerate(places):
            batch.token[i], batch.pos[i] = self.tokens[sequence][position], position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, scored
        batch.n_tokens = len(places)
        assert self.lib.llama_decode(self.run, batch) == 0
        for i, (_, _, scored) in enumerate(places):
            if scored:
                self.lib.llama_get_logits_ith(self.run, i)[0]  # waits for the result

    def tokens_per_second(self):
        self.lib.llama_memory_clear(self.memory, True)
        for sequence in range(self.sequences):
            self.decode([(sequence, i, i + 1 == self.context) for i in range(self.context)])
        start = time.perf_counter()
        for step in range(self.steps):
            self.decode([(sequence, self.context + step, True) for sequence in range(self.sequences)])
        return self.sequences * self.steps / (time.perf_counter() - start)

    def close(self):
        self.lib.llama_free(self.run)
        self.lib.llama_model_free(self.model)


def bench(options, sequences):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([options.shiftrt, "bench", "cpu", "--model", options.model, "--threads", str(options.threads),
                        "--sequences", str(sequences), "--context", str(options.context), "--decode", str(options.steps),
                        "--prefill", "16", "--rounds", "1", "--products", options.products, "--quiet", "--json",
                        file.name], check=True, capture_output=True)
        return json.load(open(file.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", default="build/release/bin/shiftrt")
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--batched-bench", help="the program llama-batched-bench")
    parser.add_argument("--products", default="auto", help="of shiftrt: auto, float32 or bfloat16")
    parser.add_argument("--sequences", default="1,4,16")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    if not options.batched_bench:
        from llama_cpp_families import LlamaCpp
        llama = LlamaCpp()
    for sequences in map(int, options.sequences.split(",")):
        theirs = BatchedBench(options, sequences) if options.batched_bench else Sequences(
            llama, options.gguf, sequences, options.context, options.steps, options.threads)
        theirs.tokens_per_second()  # loads the pages
        rounds = []
        for _ in range(options.rounds):
            ours = bench(options, sequences)
            rounds.append({"shiftrt": ours["together_tokens_per_second"], "floor": ours["together_floor"],
                           "llama.cpp": theirs.tokens_per_second()})
        medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        ratio = statistics.median(r["shiftrt"] / r["llama.cpp"] for r in rounds)
        print(f"{sequences:3} sequences: shiftrt {medians['shiftrt']:.1f} tokens/s, llama.cpp {medians['llama.cpp']:.1f}, "
              f"ratio {ratio:.2f}; floor {medians['floor']:.1f}", flush=True)
        rows.append({"sequences": sequences, "ratio": ratio, **medians, "rounds": rounds})
        theirs.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**provenance(), "model": Path(options.model).name, "gguf": Path(options.gguf).name, "products": options.products,
                       "context": options.context, "steps": options.steps, "threads": options.threads, "rows": rows}, file,
                      indent=1)


if __name__ == "__main__":
    main()
