#!/usr/bin/env python3
"""Runs other methods of depth pruning from their own public code, and shiftrt with the same method, on one model and text.

    pip install torch==2.6.0 transformers==5.23.0 colorama tqdm pyyaml
    git clone https://github.com/mts-ai/ReplaceMe; git clone https://github.com/jiwonsong-dev/SLEB    # and so on
    bench/rivals/methods.py --shiftrt build/release/bin/shiftrt --model SmolLM2-135M-Instruct --calib c4-long.jsonl \\
        --text c4.txt --text wiki.test.raw --shortgpt ShortGPT --llm-streamline LLM-Streamline --sleb SLEB \\
        --replaceme ReplaceMe --linearpatch LinearPatch --rounds 3 --json result.json

Each option with the name of a method names a checkout of its code; methods without one are left out. The script fetches
nothing. Everything runs in float32 on the CPU. Per method and round it starts two processes, one after the other, because the
speed of a shared machine drifts: one runs the method's code in PyTorch, the other `shiftrt run`. Both open the model, choose
the layers, and repair the model where the method does; shiftrt and ReplaceMe also write it. The seconds of PyTorch begin after the
imports. Those of shiftrt are of the whole process, without the comparison of variants with which `run` ends. The peak resident
memory is that of the whole process, with imports and comparison. The table has medians over the rounds, and medians of the
ratios of the rounds. The perplexity of both results is then measured on the same windows, in PyTorch and by `shiftrt ppl`.

The calibration text of both is the same tokens: the samples that shiftrt fits. It also holds out every eighth, which the other
code does not get. Both choices of layers are shown. Where they differ, shiftrt repairs the model a second time, without the
layers that the method's own code has chosen, and the perplexity is that of this model.

What of the code runs, and what is adapted from outside its files:

  shortgpt        ShortLlama.compute_bi and remove_layers of github.com/sramshetty/ShortGPT (the paper has no code of its
                  own). Its forward pass needs Meta's `llama` package, fairscale and CUDA: the streams come from
                  transformers. Same as --prune bi.
  llm-streamline  get_cosine_similarity, with the first samples in place of random ones. Same as --prune streamline, but for
                  windows that end after the last block, where transformers' stream has passed the final norm. Its trained
                  replacement is not run: it downloads SlimPajama-6B, and its call of a decoder layer needs transformers
                  before 4.48.
  sleb            sleb(), whole, without its evaluation. The device "cuda:0" becomes the CPU, the text is given, and hooks
                  fit what transformers 5 returns from a layer and from attention to what the code expects. Same as
                  --prune ppl-greedy with keep=first:1,last:1.
  replaceme       profile_distances and lstsq, whole. The device "cuda" becomes the CPU, the text is given, and what it
                  loads and stores as bfloat16 is float32. Same as --prune angular, but for windows that begin at block 0, which it
                  does not consider, and as --correction replaceme --lambda 0. The numerical solver (cosine distance) needs
                  torchmin and CUDA and is not run; nothing is loaded in 4 bits.
  linearpatch     get_pruned_layer_with_cosine, get_scale_params and the patch matrix of LinearPatch. It divides by 128
                  samples whatever it is given, so that it gets 128 shorter ones. float16 becomes float32, and the patch is
                  applied by a hook of ours, because its own expects tuples from decoder layers and returns float16. Its
                  criterion takes cosines per channel over tokens, and windows that begin after block 0 and end before the
                  last block, so that it need not choose what --prune streamline does. The patch is that of --correction
                  linearpatch. Its distillation needs CUDA and is not run.

Ghosted Layers has no licence and Prune&Comp is run by its authors on CUDA in float16 only; neither is here.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

LINEARPATCH_SAMPLES = 128  # a constant of its code


# --------------------------------------------------------------------------------------------------------------------
# One process that runs a method's own code.


def stand_in(name, **members):
    """A module that the code imports and that what is run of it never calls."""
    module = sys.modules[name] = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)


class OnCpu:
    """torch, as a module sees it that asks for CUDA, and for 16-bit weights where these are float32."""

    def __init__(self, torch):
        self._torch = torch
        self.bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def load(self, file):
        return self._torch.load(file, weights_only=False)

    def device(self, _):
        return self._torch.device("cpu")

    def zeros(self, *shape, device=None, **more):
        return self._torch.zeros(*shape, **more)

    def eye(self, *shape, device=None, **more):
        return self._torch.eye(*shape, **more)


def load(args):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.config.use_cache = False
    return model.eval()


def without(model, layers):
    import torch
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in layers]
    model.model.layers = torch.nn.ModuleList(kept)
    for i, layer in enumerate(kept):
        layer.self_attn.layer_idx = i
    model.config.num_hidden_layers = len(kept)
    return model


def run_shortgpt(args, samples):
    import torch
    stand_in("llama", Llama=object, Transformer=object)
    sys.path.insert(0, str(args.checkout / "short_gpt"))
    from short_llama import ShortLlama
    yield "imported"
    model = load(args)
    short = ShortLlama.__new__(ShortLlama)
    short.llama, short.n_prune_layers = model, args.remove
    short.importances = [0 for _ in model.model.layers]
    for sample in samples:
        streams = []
        hooks = [layer.register_forward_hook(lambda m, inputs, out: streams.append((inputs[0], out)))
                 for layer in model.model.layers]
        with torch.inference_mode():
            model.model(sample[None])
            short.compute_bi([streams[0][0]] + [out for _, out in streams], angular=False)
        for hook in hooks:
            hook.remove()
    layers = sorted(int(layer) for layer in short.remove_layers())
    yield layers, without(model, [])


def run_streamline(args, samples):
    sys.path.insert(0, str(args.checkout))
    from LLM_Streamline import get_cosine
    get_cosine.generate_unique_index = lambda begin, end, length: range(length)
    yield "imported"
    model = load(args)
    data = [{"input_ids": sample.tolist()} for sample in samples]
    count = model.config.num_hidden_layers
    first = get_cosine.get_cosine_similarity(model, data + data[:1], len(data), "cpu", args.remove, count)
    layers = list(range(first, first + args.remove))
    yield layers, without(model, layers)


def run_sleb(args, samples):
    import torch
    stand_in("fire", Fire=None)
    stand_in("datasets", load_dataset=None)
    sys.path.insert(0, str(args.checkout))
    import sleb
    kept = {}

    def open_model(_):
        model = kept["model"] = load(args)
        model.name, model.seqlen = "llama", args.length
        return model

    def replace(model):
        model = replaced(model)
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(lambda m, inputs, out: (*out[:2], None))
            layer.register_forward_hook(lambda m, inputs, out: out[0])
        return model

    replaced = sleb.block_replace
    sleb.torch, sleb.get_llm, sleb.block_replace = OnCpu(torch), open_model, replace
    sleb.get_trainloaders = lambda *a, **k: types.SimpleNamespace(input_ids=samples.reshape(1, -1))
    layers = []
    turn_off, turn_on = sleb.turn_off, sleb.turn_on
    sleb.turn_off = lambda model, layer: (layers.append(layer), turn_off(model, layer))
    sleb.turn_on = lambda model, layer: (layers.remove(layer), turn_on(model, layer))
    yield "imported"
    blocks = json.loads((Path(args.model) / "config.json").read_text())["num_hidden_layers"]
    sleb.sleb(num_blocks=blocks, num_remove_blocks=args.remove, eval_ppl=False, result_folder=args.scratch)
    yield sorted(layers), kept["model"]


def run_replaceme(args, samples):
    import torch
    stand_in("datasets", Dataset=object)
    stand_in("lm_eval", evaluator=None)
    stand_in("torchmin", minimize=None)
    stand_in("termcolor", colored=None)
    sys.path.insert(0, str(args.checkout))
    from ReplaceMe import distance, lstsq

    class Tokenizer:  # of a text that is given as token ids
        pad_token = "none"
        from_pretrained = classmethod(lambda cls, path: cls())
        save_pretrained = staticmethod(lambda path: None)

        def __call__(self, batch, **_):
            return {"input_ids": batch, "attention_mask": torch.ones_like(batch)}

    found = []
    select = lstsq.select_non_overlapping_blocks
    lstsq.select_non_overlapping_blocks = lambda *a, **k: found.append(select(*a, **k)) or found[0]
    for module in (distance, lstsq):
        module.AutoTokenizer = Tokenizer
        module.get_calib_dataloader = lambda *a: [sample[None] for sample in samples]
    lstsq.torch = OnCpu(torch)
    os.chdir(args.scratch)  # where it writes distances
    yield "imported"
    shared = {"model_path": args.model, "dataset": "", "dataset_column": "", "batch_size": 1, "max_length": args.length,
              "layers_to_skip": args.remove}
    distance.profile_distances(**shared)
    saved = lstsq.lstsq(**shared, save_path="replaceme")
    (begin, end), = found[0]
    yield list(range(begin, end)), saved


def run_linearpatch(args, samples):
    import torch
    sys.path.insert(0, str(args.checkout))
    import block_scaling
    import layer_select

    class Float32(torch.Tensor):
        def half(self):
            return self.as_subclass(torch.Tensor)

    hadamard = layer_select.get_hadamard_matrix
    layer_select.get_hadamard_matrix = lambda n, device: hadamard(n, device).float().as_subclass(Float32)
    yield "imported"
    model = load(args)
    loader = [(sample[None],) for sample in samples]
    _, begin, end, _ = layer_select.get_pruned_layer_with_cosine(model, loader, args.remove, "cpu")
    scales = layer_select.get_scale_params(model, loader, begin, end, True, "cpu")
    model = without(model, range(begin, end))
    patch = block_scaling.LinearPatch(scales.float(), rotated=True).get_weight().detach()
    model.model.layers[begin - 1].register_forward_hook(lambda m, inputs, out: out @ patch)
    torch.save({"patch": patch, "begin": begin}, Path(args.scratch) / "scales.pt")
    yield list(range(begin, end)), model


def run_original(args, _):
    yield "imported"
    yield [], load(args)


RUNS = {"original": run_original, "shortgpt": run_shortgpt, "llm-streamline": run_streamline, "sleb": run_sleb,
        "replaceme": run_replaceme, "linearpatch": run_linearpatch}


def perplexity(model, windows):
    import torch
    total = predicted = 0
    with torch.inference_mode():
        for window in windows:
            logits = model(window[None]).logits[0, :-1].double()
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            predicted += len(window) - 1
    return float(torch.tensor(total / predicted, dtype=torch.float64).exp())


def work(args):
    """Runs in a process of PyTorch; prints a line of JSON."""
    import resource

    import torch
    import transformers
    args.checkout = Path(args.checkout)
    torch.set_num_threads(args.threads)
    run = RUNS[args.method](args, torch.tensor(args.samples))
    next(run)
    start = time.perf_counter()
    layers, model = next(run)
    seconds = time.perf_counter() - start
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if isinstance(model, str):
        model = load(types.SimpleNamespace(model=model))
    measured = [perplexity(model, torch.tensor(windows)) for windows in args.windows]
    print(json.dumps({"layers": layers, "seconds": seconds, "peak_resident_bytes": peak, "perplexity": measured,
                      "torch": torch.__version__, "transformers": transformers.__version__}))


# --------------------------------------------------------------------------------------------------------------------
# Both programs, in turn.

# Options of shiftrt: the criterion and the correction.
OURS = {"shortgpt": ("bi:{}", []), "llm-streamline": ("streamline:{}", []),
        "sleb": ("ppl-greedy:{},keep=first:1,last:1", []),
        "replaceme": ("angular:{},keep=first:1", ["--correction", "replaceme", "--lambda", "0"]),
        "linearpatch": ("streamline:{},keep=first:1", ["--correction", "linearpatch"])}


def tokens_of(args, text):
    out = subprocess.run([args.shiftrt, "tokenize", "--model", args.model, "--ids", "--text", text], check=True,
                         capture_output=True, text=True).stdout
    return [int(token) for token in out.split()]


def is_held_out(index, count):
    """True for a sample that shiftrt holds out (docs/glossary.md, held out)."""
    return index % 8 == 7 if count >= 8 else count >= 2 and index == count - 1


def calibration(args, fitted, length, text):
    """Writes a text of which shiftrt takes every sample. Returns how many there are, and those that it fits."""
    count = next(n for n in range(fitted, 2 * fitted + 2) if sum(not is_held_out(i, n) for i in range(n)) == fitted)
    whole = "\n\n".join(json.loads(line)["text"] for line in open(args.calib, encoding="utf-8"))
    wanted = (count + 0.5) * length
    size, tokens = 4 * wanted, []
    while len(tokens) // length != count:
        size *= wanted / len(tokens) if tokens else 1
        text.write_text(whole[:int(size)], encoding="utf-8")
        tokens = tokens_of(args, text)
    samples = [tokens[i * length:(i + 1) * length] for i in range(count)]
    return count, [sample for i, sample in enumerate(samples) if not is_held_out(i, count)]


def windows_of(args, text):
    tokens = tokens_of(args, text)
    return [tokens[i:i + args.window] for i in range(0, args.text_tokens - args.window + 1, args.window)]


def run_theirs(job, scratch):
    file = scratch / "job.json"
    file.write_text(json.dumps(job))
    out = subprocess.run([sys.executable, __file__, "--worker", file], check=True, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}).stdout
    return json.loads(out.splitlines()[-1])


def run_ours(args, prune, repair, calib, text, scratch):
    """Seconds of the whole process but for the comparison of variants at its end, and its peak memory with that."""
    result = scratch / "ours.json"
    command = [args.shiftrt, "run", "--model", args.model, "--dtype", args.dtype, "--threads", str(args.threads),
               "--prune", prune, *(repair or ["--correction", "none"]), "--calib", calib, "--text", text, "--text-tokens",
               str(args.window), "--max-tokens", "1", "--quiet", "--json", result, "--save", scratch / "ours"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(map(str, command))} failed")
    found = json.loads(result.read_text())
    return {"layers": found["selection"]["removed"], "seconds": seconds - found["seconds"]["evaluate"],
            "peak_resident_bytes": 1024 * usage.ru_maxrss, "steps": found["seconds"]}


def measure_ours(args, model, texts, scratch):
    def one(text):
        result = scratch / "ppl.json"
        subprocess.run([args.shiftrt, "ppl", "--model", model, "--dtype", args.dtype, "--text", text, "--text-tokens",
                        str(args.text_tokens), "--threads", str(args.threads), "--quiet", "--json", result], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())["perplexity"]
    return [one(text) for text in texts]


def prepare_model(args, scratch):
    """The model in float32, with windows of the given length, for both programs."""
    source, model = Path(args.model).resolve(), scratch / "model"
    model.mkdir()
    for file in source.iterdir():
        if file.name != "config.json":
            (model / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    config["max_position_embeddings"] = args.window
    config["torch_dtype"] = config["dtype"] = "float32"
    (model / "config.json").write_text(json.dumps(config))
    return str(model)


def compare(args, method, texts, windows, scratch):
    fitted, length, remove = args.samples, args.length, args.remove
    if method == "linearpatch":
        fitted, length = LINEARPATCH_SAMPLES, args.linearpatch_length
    elif method == "sleb":
        fitted, remove = args.sleb_samples, args.sleb_remove
    text = scratch / f"{method}.txt"
    count, samples = calibration(args, fitted, length, text)
    calib = f"{text}:{count}x{length}"
    criterion, repair = OURS[method]
    ours, theirs = [], []
    for _ in range(args.rounds):
        job = {"method": method, "model": args.model, "threads": args.threads, "remove": remove, "length": length,
               "samples": samples, "windows": [] if theirs else windows, "scratch": str(scratch),
               "checkout": str(getattr(args, method.replace("-", "_")).resolve())}
        theirs.append(run_theirs(job, scratch))
        ours.append(run_ours(args, criterion.format(remove), repair, calib, texts[0], scratch))
    chosen = ours[0]["layers"]
    if chosen != theirs[0]["layers"]:
        layers = "layers=" + ",".join(map(str, theirs[0]["layers"]))
        run_ours(args, layers, repair, calib, texts[0], scratch)
    return {"samples": fitted, "tokens": length, "layers": {"theirs": theirs[0]["layers"], "ours": chosen},
            "perplexity": {"theirs": theirs[0]["perplexity"], "ours": measure_ours(args, scratch / "ours", texts, scratch)},
            "theirs": theirs, "ours": ours,
            "times_faster": statistics.median(a["seconds"] / b["seconds"] for a, b in zip(theirs, ours)),
            "share_of_memory": statistics.median(
                b["peak_resident_bytes"] / a["peak_resident_bytes"] for a, b in zip(theirs, ours))}


def ranges(layers):
    runs = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


def print_table(results, texts):
    names = [text.name for text in texts]
    print("| method | layers, theirs | ours | " + " | ".join(f"{name}, theirs | ours" for name in names) +
          " | s, theirs | ours | times faster | MB, theirs | ours | share |")
    print("|---" * (9 + 2 * len(names)) + "|")
    for method, r in results.items():
        middle = [statistics.median(run["seconds"] for run in r[who]) for who in ("theirs", "ours")]
        peak = [statistics.median(run["peak_resident_bytes"] for run in r[who]) / 1e6 for who in ("theirs", "ours")]
        cells = [method, ranges(r["layers"]["theirs"]), ranges(r["layers"]["ours"])]
        for pair in zip(r["perplexity"]["theirs"], r["perplexity"]["ours"]):
            cells += [f"{value:.4f}" for value in pair]
        cells += [f"{value:.1f}" for value in middle] + [f"{r['times_faster']:.2f}"]
        cells += [f"{value:.0f}" for value in peak] + [f"{r['share_of_memory']:.2f}"]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shiftrt")
    parser.add_argument("--model", help="a Hugging Face directory of a Llama model, which both programs read")
    parser.add_argument("--calib", help="calibration text: a file of JSON lines with a member \"text\"")
    parser.add_argument("--text", type=Path, action="append", help="held-out text for the perplexity; repeatable")
    for method in OURS:
        parser.add_argument(f"--{method}", type=Path, help="checkout of its code")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--remove", type=int, default=7, help="blocks to remove")
    parser.add_argument("--samples", type=int, default=7, help="fitted samples")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--linearpatch-length", type=int, default=64, help="the same for its 128 samples")
    parser.add_argument("--sleb-samples", type=int, default=1)
    parser.add_argument("--sleb-remove", type=int, default=2)
    parser.add_argument("--window", type=int, default=512, help="tokens of a window of the perplexity")
    parser.add_argument("--text-tokens", type=int, default=4096)
    parser.add_argument("--dtype", default="float32", help="of shiftrt; with bfloat16, changed weights are rounded to it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(types.SimpleNamespace(**json.loads(args.worker.read_text())))
    if not (args.shiftrt and args.model and args.calib and args.text):
        parser.error("--shiftrt, --model, --calib and --text are needed")
    from provenance import provenance
    name = Path(args.model).resolve().name
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        args.model = prepare_model(args, scratch)
        texts = []
        for text in args.text:  # as plain text, which is tokenised as it is
            texts.append(scratch / f"{text.name.partition('.')[0]}.txt")
            texts[-1].write_text(text.read_text(encoding="utf-8")[:16 * args.text_tokens], encoding="utf-8")
        windows = [windows_of(args, text) for text in texts]
        original = run_theirs({"method": "original", "model": args.model, "threads": args.threads, "samples": [],
                               "windows": windows, "checkout": ""}, scratch)
        control = {"theirs": original["perplexity"], "ours": measure_ours(args, args.model, texts, scratch)}
        print(f"perplexity of the original: {control}", file=sys.stderr)
        results = {}
        for method in OURS:
            if not getattr(args, method.replace("-", "_")):
                continue
            results[method] = compare(args, method, texts, windows, scratch)
            print(f"{method}: done", file=sys.stderr)
            if args.json:  # after every method, so that an interrupted run keeps what it has
                args.json.write_text(json.dumps(
                    {**provenance(), "model": name, "threads": args.threads, "dtype": args.dtype, "window": args.window,
                     "text_tokens": args.text_tokens, "texts": [text.name for text in args.text],
                     "torch": original["torch"], "transformers": original["transformers"], "original": control,
                     "methods": results}, indent=2) + "\n")
        print_table(results, texts)


if __name__ == "__main__":
    main()
