#!/usr/bin/env python3
"""Compares the decoding and prefill speed of shiftrt and llama.cpp on the same random weights.

    pip install gguf numpy safetensors ml_dtypes
    bench/rivals/llama_cpp.py --shiftrt build/release/bin/shiftrt --llama-bench llama.cpp/build/bin/llama-bench \\
        --config Qwen2-1.5B/config.json --rounds 7 --json result.json

Both programs read weights of the given shape, which `shiftrt bench` makes in bfloat16. With --rival-dtype f16, llama.cpp
reads the same numbers in float16, for which it has faster products on CPUs without bfloat16 instructions. Rounds
alternate between the two programs, because the bandwidth of a shared machine drifts. The table gives medians, and the
median of the ratios of the rounds. Check out and build llama.cpp yourself: https://github.com/ggml-org/llama.cpp
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import ml_dtypes  # teaches numpy bfloat16
import numpy as np
from safetensors import safe_open

from provenance import provenance

ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "llama": gguf.MODEL_ARCH.LLAMA}
RENAMED = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}


def gguf_name(name):
    if name.startswith("model.layers."):
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        module, kind = rest.rsplit(".", 1)
        return f"blk.{layer}.{RENAMED[module]}.{kind}"
    module, kind = name.rsplit(".", 1)
    return f"{RENAMED[module]}.{kind}"


def write_gguf(checkpoint, out, dtype):
    """Writes the checkpoint as GGUF. Llama's rotary pairs are not interleaved, which does not matter for random weights."""
    config = json.loads((checkpoint / "config.json").read_text())
    name = config["model_type"]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[name]])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{dtype.upper()}"))
    with safe_open(checkpoint / "model.safetensors", "numpy") as tensors:
        for key in tensors.keys():
            tensor = tensors.get_tensor(key)
            if tensor.ndim == 2 and dtype == "f16":
                writer.add_tensor(gguf_name(key), tensor.astype(np.float16))
            elif tensor.ndim == 2:
                writer.add_tensor(gguf_name(key), tensor.view(np.uint16).view(np.uint8),
                                  raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                writer.add_tensor(gguf_name(key), tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_shiftrt(args, checkpoint, scratch):
    out = scratch / "shiftrt.json"
    subprocess.run([args.shiftrt, "bench", "cpu", "--model", checkpoint, "--threads", str(args.threads), "--prefill",
                    str(args.prefill), "--context", str(args.context), "--decode", str(args.decode), "--rounds", "1",
                    "--quiet", "--json", out], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def run_llama(args, model):
    command = [args.llama_bench, "-m", model, "-t", str(args.threads), "-p", str(args.prefill), "-n", "0", "-r", "1",
               "-o", "json", "-ub", "512"]
    prefill = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]
    command = [args.llama_bench, "-m", model, "-t", str(args.threads), "-p", "0", "-n", str(args.decode), "-d",
               str(args.context), "-r", "1", "-o", "json"]
    decode = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]
    return {"prefill": prefill["avg_ts"], "decode": decode["avg_ts"], "build": prefill["build_commit"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--config", type=Path, required=True, help="config.json of a Llama or Qwen2 model")
    parser.add_argument("--keep", type=Path, help="keep the weights here and reuse them (3 times their size)")
    parser.add_argument("--rival-dtype", choices=["bf16", "f16"], default="bf16", help="llama.cpp's copy of the weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--context", type=int, default=128, help="tokens cached when decoding begins")
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.keep or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        checkpoint, model = scratch / "checkpoint", scratch / f"model.{args.rival_dtype}.gguf"
        if not (checkpoint / "model.safetensors").exists():
            subprocess.run([args.shiftrt, "bench", "cpu", "--config", args.config, "--save", checkpoint, "--rounds",
                            "1", "--prefill", "1", "--decode", "1", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        if not model.exists():
            write_gguf(checkpoint, model, args.rival_dtype)
        rounds = []
        for i in range(args.rounds):
            ours, theirs = run_shiftrt(args, checkpoint, scratch), run_llama(args, model)
            rounds.append({"shiftrt": ours, "llama.cpp": theirs})
            print(f"round {i + 1}: prefill {ours['prefill_tokens_per_second']:.1f} / {theirs['prefill']:.1f}, decode "
                  f"{ours['decode_tokens_per_second']:.2f} / {theirs['decode']:.2f} tokens/s", file=sys.stderr)

    def median(values):
        return statistics.median(list(values))

    result = {**provenance(), "config": str(args.config.name), "threads": args.threads, "rival_dtype": args.rival_dtype,
              "build": rounds[0]["llama.cpp"]["build"], "rounds": rounds}
    for what, limit in (("prefill", "peak"), ("decode", "bandwidth")):
        ours = [r["shiftrt"][f"{what}_tokens_per_second"] for r in rounds]
        theirs = [r["llama.cpp"][what] for r in rounds]
        floor = [r["shiftrt"][f"{what}_floor"] for r in rounds]
        share = [r["shiftrt"][f"{what}_share_of_{limit}"] for r in rounds]
        result[what] = {"shiftrt": median(ours), "llama.cpp": median(theirs), "floor": median(floor),
                        "share": median(share), "ratio": median(a / b for a, b in zip(ours, theirs))}
        r = result[what]
        print(f"{what}: shiftrt {r['shiftrt']:.2f}, llama.cpp {r['llama.cpp']:.2f} tokens/s, ratio {r['ratio']:.2f}; "
              f"floor {r['floor']:.2f}, {100 * r['share']:.0f}% of {limit}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
