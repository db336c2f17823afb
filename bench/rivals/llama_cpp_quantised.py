#!/usr/bin/env python3
"""Times shiftrt and llama.cpp on the same quantised GGUF file, in alternating rounds.

    pip install xllamacpp
    bench/rivals/llama_cpp_quantised.py --shiftrt build/release/bin/shiftrt --gguf model-q4_k_m.gguf --rounds 3 --json result.json
    bench/rivals/llama_cpp_quantised.py ... --llama-bench llama.cpp/build/bin/llama-bench

xllamacpp is a package with a built llama.cpp. Each round starts a new process of either program, which reads a prompt of
--prefill tokens and generates --decode tokens greedily after it. The table has the medians, the median of the
rounds' ratios, and the floor of decoding: the bytes of the file over the read bandwidth that `shiftrt bench cpu` measured in
the same round. The largest resident memory of each process, which includes the mapped file, and the
seconds from its start to the first token of a short prompt are measured too.

The package's instructions are those of AVX2. With --llama-bench, a llama.cpp that was built for this machine is timed
instead, and shiftrt with float32 and with rounded products: tokens per second alone.
"""
import argparse
import importlib.metadata
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance

TEXT = "The sun rose over the quiet harbour, and the fishermen prepared their nets for another long day at sea. "


def llama(options):
    """Reads the prompt and generates with llama.cpp, in a process of its own that a round starts with --child."""
    import xllamacpp

    start = time.time()
    params = xllamacpp.CommonParams()
    params.model.path = str(options.gguf)
    params.n_ctx, params.n_parallel, params.warmup = options.prefill + options.decode + 64, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(params)

    def complete(prompt, count):
        answer = server.handle_completions({"prompt": prompt, "n_predict": count, "temperature": 0.0, "cache_prompt": False,
                                            "ignore_eos": True, "timings_per_token": True})
        if "error" in answer:
            raise SystemExit(f"llama.cpp: {answer['error']}")
        return answer["timings"]

    complete("Hello", 1)
    first = time.time() - start
    timings = complete(TEXT * (options.prefill // 16), options.decode)
    print(json.dumps({"first_token": first, "prefill": timings["prompt_per_second"], "prompt": timings["prompt_n"],
                      "decode": timings["predicted_per_second"],
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def measured(words):
    """Seconds, output and largest resident memory of a process."""
    start = time.time()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{words[0]} ended with status {status}")
    return time.time() - start, output, usage.ru_maxrss * 1024


def shiftrt(options, work):
    generate = [options.shiftrt, "generate", "--model", options.gguf, "--threads", options.threads, "--quiet"]
    first, _, _ = measured(generate + ["--prompt", "Hello", "--max-tokens", 1])
    _, output, peak = measured([word for word in generate if word != "--quiet"] +
                               ["--prompt", TEXT * (options.prefill // 16), "--max-tokens", options.decode, "--temperature", 0])
    prompt, prefill, decode = re.search(r"prompt: (\d+) tokens, ([\d.]+) tokens/s; generated: \d+ tokens, ([\d.]+)", output).groups()
    report = Path(work, "bench.json")
    measured([options.shiftrt, "bench", "cpu", "--threads", options.threads, "--rounds", 1, "--json", report, "--quiet"])
    bandwidth = json.loads(report.read_text())["read_bandwidth"]
    return {"first_token": first, "prefill": float(prefill), "prompt": int(prompt), "decode": float(decode), "peak_bytes": peak,
            "decode_floor": bandwidth / options.gguf.stat().st_size, "read_bandwidth": bandwidth}


def shiftrt_bench(options, products, work):
    report = Path(work, "bench.json")
    measured([options.shiftrt, "bench", "cpu", "--model", options.gguf, "--threads", options.threads, "--prefill", options.prefill,
              "--context", 1, "--decode", options.decode, "--sequences", 1, "--rounds", 1, "--products", products, "--quiet",
              "--json", report])
    result = json.loads(report.read_text())
    return {"prefill": result["prefill_tokens_per_second"], "decode": result["decode_tokens_per_second"],
            "read_bandwidth": result["read_bandwidth"]}


def llama_bench(options):
    _, output, _ = measured([options.llama_bench, "-m", options.gguf, "-p", options.prefill, "-n", options.decode, "-t", options.threads,
                             "-r", 1, "-o", "json"])
    tests = json.JSONDecoder().raw_decode(output[output.index("[\n"):])[0]
    return {("prefill" if test["n_prompt"] > 0 else "decode"): test["avg_ts"] for test in tests}


def compare_with_build(options):
    """Rounds of three: shiftrt with either kind of products, and the llama-bench that the user built."""
    rounds = []
    with tempfile.TemporaryDirectory() as work:
        for _ in range(options.rounds):
            rounds.append({"llama.cpp": llama_bench(options), "float32": shiftrt_bench(options, "float32", work),
                           "rounded": shiftrt_bench(options, "bfloat16", work)})
            print(json.dumps(rounds[-1]), file=sys.stderr)
    result = provenance() | {"llama.cpp": "llama-bench, built for this machine", "file": options.gguf.name,
                             "file_bytes": options.gguf.stat().st_size, "threads": options.threads, "prefill": options.prefill,
                             "decode": options.decode, "rounds": rounds}
    for key in ("prefill", "decode"):
        for ours in ("float32", "rounded"):
            ratio = result[f"{key}_ratio_{ours}"] = statistics.median(one[ours][key] / one["llama.cpp"][key] for one in rounds)
            medians = [statistics.median(one[name][key] for one in rounds) for name in (ours, "llama.cpp")]
            print(f"{key:8} {ours:8} {medians[0]:8.2f} {medians[1]:8.2f} tokens/s  ratio {ratio:.2f}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-bench", type=Path, help="a llama-bench that was built for this machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.child:
        return llama(options)
    if options.shiftrt is None:
        parser.error("--shiftrt is required")
    if options.llama_bench is not None:
        result = compare_with_build(options)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n")
        return 0

    rounds = []
    with tempfile.TemporaryDirectory() as work:
        for _ in range(options.rounds):
            ours = shiftrt(options, work)
            _, output, _ = measured([sys.executable, __file__, "--child", "--gguf", options.gguf, "--prefill", options.prefill,
                                     "--decode", options.decode, "--threads", options.threads])
            rounds.append({"shiftrt": ours, "llama.cpp": json.JSONDecoder().raw_decode(output[output.index('{"first_token'):])[0]})
            print(json.dumps(rounds[-1]), file=sys.stderr)
    result = provenance() | {"llama.cpp": f"xllamacpp {importlib.metadata.version('xllamacpp')}", "file": options.gguf.name,
                             "file_bytes": options.gguf.stat().st_size, "threads": options.threads, "prefill": options.prefill,
                             "decode": options.decode, "rounds": rounds}
    medians = {name: {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]}
               for name in ("shiftrt", "llama.cpp")}
    ours, rival = medians["shiftrt"], medians["llama.cpp"]
    result["medians"] = medians
    for key, unit, scale in (("decode", "tokens/s", 1), ("prefill", "tokens/s", 1), ("first_token", "s", 1),
                             ("peak_bytes", "GB", 1e-9)):
        ratio = statistics.median(one["shiftrt"][key] / one["llama.cpp"][key] for one in rounds)
        result[f"{key}_ratio"] = ratio
        print(f"{key:12} {ours[key] * scale:8.2f} {rival[key] * scale:8.2f} {unit:9} ratio {ratio:.2f}")
    print(f"floor of decoding: {ours['decode_floor']:.1f} tokens/s at {ours['read_bandwidth'] / 1e9:.1f} GB/s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
