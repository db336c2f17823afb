#!/usr/bin/env python3
"""Runs lm-evaluation-harness on rows and records prompts, token ids, log-likelihoods and metrics.

    pip install lm-eval==0.4.13 torch==2.6.0 transformers==5.23.0
    make_eval.py golden                        writes eval/expected.json from the rows under eval/data (our own)
    make_eval.py compare --tool build/bin/shiftrt --model DIR --data DIR [--limit N] [--shots N] [--tasks a,b]
                                               runs `shiftrt eval` and the reference on the same rows, and compares
    make_eval.py compare --tool build/bin/shiftrt --model SAVED --export DIR --data DIR ...
                                               the same, with what `shiftrt export` made of SAVED (a directory that
                                               `run --save` wrote) as the model of the reference
    make_eval.py perplexity --tool build/bin/shiftrt --model DIR --text wiki.test.raw
                                               the same for the three perplexity protocols

The reference's own task definitions, few-shot sampling, tokenisation, scoring and metrics run unchanged; only its
download is replaced by local files.
"""
import argparse
import csv
import functools
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import datasets
import lm_eval.api.task
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

HERE = Path(__file__).resolve().parent
SEED = 1234  # the seed of the reference's few-shot sampler, as set by its command line


@functools.cache
def task_manager():
    return TaskManager()


def json_lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def find(data, *patterns):
    for pattern in patterns:
        for place in data:
            if found := sorted(glob.glob(os.path.join(place, pattern))):
                return found[0]
    return None


def lambada(row):
    return row if "text" in row else {"text": row["context"] + " " + row["continuation"]}


def mmlu_rows(path, subject):
    rows = []
    for record in csv.reader(open(path, encoding="utf-8", newline="")):
        if record[-1].lower() == "answer":
            continue
        answer = record[5] if record[5] in "0123" else "ABCD".index(record[5])
        rows.append({"question": record[0], "subject": subject, "choices": record[1:5], "answer": int(answer)})
    return rows


def cmmlu_rows(path):
    return [{key: row[key] for key in ("Question", "A", "B", "C", "D", "Answer")}
            for row in csv.DictReader(open(path, encoding="utf-8", newline=""))]


def pages(path):
    """Splits a raw file into pages, as EleutherAI/wikitext_document_level does."""
    out, page = [], []
    for line in open(path, encoding="utf-8", newline="\n").read().split("\n"):
        title = line.replace("= = =", "===").replace("= =", "==").strip()
        if title.startswith("= ") and title.endswith(" ="):
            if "\n".join(page).strip():
                out.append({"page": "\n".join(page)})
            page = []
        page.append(line)
    return out + [{"page": "\n".join(page)}]


# Our task -> the reference's task, the split it evaluates, and the source of its shots.
TASKS = {"boolq": ("boolq", "validation", "train"), "piqa": ("piqa", "validation", "train"),
         "hellaswag": ("hellaswag", "validation", "train"), "winogrande": ("winogrande", "validation", "train"),
         "arc_easy": ("arc_easy", "test", "train"), "arc_challenge": ("arc_challenge", "test", "train"),
         "openbookqa": ("openbookqa", "test", "train"), "mmlu": ("mmlu", "test", "dev"),
         "cmmlu": ("cmmlu", "test", "dev"), "lambada": ("lambada_openai", "test", None),
         "wikitext": ("wikitext", "test", None)}


def local_rows(name, subject, split, data):
    """The rows of one split with the columns that the reference expects, or an empty list."""
    if name in ("mmlu", "cmmlu"):
        path = find(data, f"{name}/{split}/{subject}_{split}.csv", f"{name}/{split}/{subject}.csv")
        if path is None:
            return None
        return mmlu_rows(path, subject) if name == "mmlu" else cmmlu_rows(path)
    if name == "wikitext":
        return pages(find(data, "wiki.test.raw"))
    path = find(data, f"{name}_{split}*.jsonl", f"{name}_xl_{split}*.jsonl", f"{name}_openai*.jsonl")
    rows = json_lines(path) if path else None
    return [lambada(row) for row in rows] if rows and name == "lambada" else rows


def reference_tasks(name, data):
    """(subject, task) for each reference task that is part of our task, over local rows."""
    theirs, evaluated, shots = TASKS[name]
    manager = task_manager()

    def load(path, name=None, **unused):
        subject = name
        splits = {}
        for split in filter(None, (evaluated, shots)):
            rows = local_rows(load.ours, subject, split, data)
            if rows is not None:
                splits[split] = datasets.Dataset.from_list(rows)
        # The reference declares train and validation splits that it does not read here.
        for split in ("train", "validation", "test"):
            splits.setdefault(split, splits[evaluated])
        return datasets.DatasetDict(splits)

    load.ours = name
    lm_eval.api.task.datasets.load_dataset = load
    if name not in ("mmlu", "cmmlu"):
        names = [theirs]
    else:
        folder = "mmlu/default" if name == "mmlu" else "cmmlu"
        names = sorted(Path(path).stem for path in
                       glob.glob(os.path.join(os.path.dirname(lm_eval.__file__), "tasks", folder, f"{name}_*.yaml")))
        suffix = "_test" if name == "mmlu" else ""
        names = [n for n in names if find(data, f"{name}/test/{n[len(name) + 1:]}{suffix}.csv")]
    for theirs in names:
        yield theirs[len(name) + 1:] if len(names) > 1 else "", manager.load([theirs])["tasks"][theirs]


def instances(task, limit, shots):
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=SEED)
    task.build_all_requests(limit=limit or None, rank=0, world_size=1)
    by_item = {}
    for instance in task.instances:
        by_item.setdefault(instance.doc_id, []).append(instance)
    return [sorted(group, key=lambda i: i.idx) for _, group in sorted(by_item.items())]


def encode(lm, args, rolling):
    """The token ids that the reference scores: (context, continuation) per request, cut to its maximum length."""
    if rolling:
        from lm_eval import utils
        return [tuple(window) for window in map(utils.make_disjoint_window, utils.get_rolling_token_windows(
            token_list=lm.tok_encode(args[0]), prefix_token=lm.prefix_token_id, max_seq_len=lm.max_length,
            context_len=1))]
    context, continuation = lm._encode_pair(*args)
    whole = (context + continuation)[-(lm.max_length + 1):]
    return [(whole[:-len(continuation)], continuation)]


def score(lm, groups, rolling):
    flat = [instance for group in groups for instance in group]
    results = lm.loglikelihood_rolling(flat, disable_tqdm=True) if rolling else lm.loglikelihood(flat, disable_tqdm=True)
    results = iter(results)
    return [[next(results) for _ in group] for group in groups]


def reference_items(lm, name, data, limit, shots):
    """One dict per item, as `shiftrt eval --items` writes it, plus the metrics of the reference."""
    for subject, task in reference_tasks(name, data):
        rolling = task.OUTPUT_TYPE == "loglikelihood_rolling"
        groups = instances(task, limit, shots)
        for group, results in zip(groups, score(lm, groups, rolling)):
            tokens = [pair for instance in group for pair in encode(lm, instance.args, rolling)]
            metrics = task.process_results(group[0].doc, results)
            yield {"subject": subject,
                   "contexts": ["" if rolling else instance.args[0] for instance in group],
                   "continuations": [instance.args[-1] for instance in group],
                   "context_tokens": [list(pair[0]) for pair in tokens],
                   "continuation_tokens": [list(pair[1]) for pair in tokens],
                   "log_likelihoods": [r if rolling else r[0] for r in results],
                   "greedy": None if rolling else [bool(r[1]) for r in results],
                   "metrics": {k: list(v) if isinstance(v, tuple) else v for k, v in metrics.items()}}


def model_of(path):
    # Only an export with adapters has code of its own. It is a copy of files in this repository.
    return HFLM(pretrained=str(path), dtype="float32", device="cpu", batch_size=16, trust_remote_code=True)


def spread(values, count):
    return values * count if len(values) == 1 else values


def ours(args, name, folder):
    items, result = folder / "items.jsonl", folder / "result.json"
    command = [args.tool, "eval", "--model", args.model, "--dtype", "float32", "--tasks", name, "--limit", str(args.limit),
               "--shots", str(args.shots), "--items", str(items), "--json", str(result), "--metrics", "all", "--threads",
               str(args.threads), "--journal", str(folder / "journal"), "--quiet"]
    for place in args.data:
        command += ["--data", place]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json_lines(items), json.load(open(result))["tasks"][0]


def compare_task(args, lm, name):
    """Counts of what agrees, and the metrics of both sides. With --export the last variant is compared, which is what
    `shiftrt export` writes; without, the original."""
    with tempfile.TemporaryDirectory() as folder:
        got, result = ours(args, name, Path(folder))
    variant = result["variants"][-1 if args.export else 0]
    metrics = variant["metrics"]
    theirs = list(reference_items(lm, name, args.data, args.limit, args.shots))
    assert len(got) == len(theirs), f"{name}: {len(got)} items of ours, {len(theirs)} of the reference"
    prompts = texts = tokens = greedy = wrong = 0
    worst = 0.0
    for a, b in zip(got, theirs):
        n = len(b["continuations"])
        prompts += n
        scores = a["variants"][variant["name"]]
        same = [spread(a["contexts"], n) == b["contexts"], spread(a["continuations"], n) == b["continuations"]]
        texts += n * all(same)
        m = len(b["continuation_tokens"])
        same = [spread(a["context_tokens"], m) == b["context_tokens"],
                a["continuation_tokens"] == b["continuation_tokens"]]
        tokens += n * all(same)
        worst = max([worst] + [abs(x - y) for x, y in zip(scores["log_likelihoods"], b["log_likelihoods"])])
        greedy += n if b["greedy"] is None else sum(x == y for x, y in zip(scores["greedy"], b["greedy"]))
    shown = []
    for metric, first in theirs[0]["metrics"].items():
        if isinstance(first, list) or metric == "perplexity":
            aggregate = next(iter(reference_tasks(name, args.data)))[1].aggregation()[metric]
            value = aggregate([tuple(b["metrics"][metric]) if isinstance(first, list) else b["metrics"][metric]
                               for b in theirs])
            mine = metrics[metric]["value"]
            shown.append(f"{metric} {mine:.6g}, {value:.6g}")
            wrong += abs(mine - value) > 1e-4 * abs(value)
        else:
            k = round(sum(b["metrics"][metric] for b in theirs))
            mine = metrics[metric]["right"]
            shown.append(f"{metric} {mine}, {k} of {len(theirs)}")
            wrong += mine != k
    wrong += texts != prompts or tokens != prompts or greedy != prompts or (worst > 1e-3 and name != "wikitext")
    return {"items": len(theirs), "prompts": prompts, "texts": texts, "tokens": tokens, "worst": worst, "greedy": greedy,
            "metrics": "; ".join(shown), "wrong": wrong}


def compare(args):
    lm = model_of(args.export or args.model)
    print(f"{'task':14}{'items':>7}{'prompts':>9}{'texts':>8}{'tokens':>8}{'max |dLL|':>12}{'greedy':>8}  metrics (ours, reference)")
    wrong = 0
    for name in args.tasks.split(","):
        t = compare_task(args, lm, name)
        wrong += t["wrong"]
        print(f"{name:14}{t['items']:7}{t['prompts']:9}{t['texts']:8}{t['tokens']:8}{t['worst']:12.2e}{t['greedy']:8}  {t['metrics']}",
              flush=True)
    sys.exit(wrong > 0)


def perplexity(args):
    """Perplexity by the loop of GPTQ and the pruning papers (rows joined by blank lines, disjoint windows) and by the reference."""
    import torch
    lm = model_of(args.model)
    rows = [line if line.strip() else "" for line in open(args.text, encoding="utf-8", newline="\n")]
    ids = torch.tensor(lm.tok_encode("\n\n".join(rows)))
    wrong = 0

    def check(protocol, name, value):
        nonlocal wrong
        with tempfile.NamedTemporaryFile() as result:
            subprocess.run([args.tool, "ppl", "--model", args.model, "--dtype", "float32", "--text", args.text, "--protocol",
                            protocol, "--json", result.name, "--quiet"], check=True, stdout=subprocess.DEVNULL)
            mine = json.load(open(result.name))[name]
        wrong += abs(mine - value) > 1e-4 * value
        print(f"{protocol:8} {name:16} ours {mine:.6f}  reference {value:.6f}", flush=True)

    for protocol, window in (("gptq", 2048), ("seq128", 128)):
        window = min(window, lm.max_length)
        losses = []
        for begin in range(0, len(ids) - window + 1, window):
            piece = ids[None, begin:begin + window]
            with torch.no_grad():
                logits = lm.model(piece).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, piece[0, 1:]))
        check(protocol, "perplexity", torch.stack(losses).mean().exp().item())
    lm_eval_items = list(reference_items(lm, "wikitext", [str(Path(args.text).parent)], 0, 0))
    nll = -sum(item["log_likelihoods"][0] for item in lm_eval_items)
    words, size = (sum(item["metrics"][m][1] for item in lm_eval_items) for m in ("word_perplexity", "byte_perplexity"))
    check("harness", "word_perplexity", math.exp(nll / words))
    check("harness", "byte_perplexity", math.exp(nll / size))
    check("harness", "bits_per_byte", nll / size / math.log(2))
    sys.exit(wrong > 0)


GOLDEN_MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
                "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "vocab_size": 1024, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "tie_word_embeddings": False, "torch_dtype": "float32"}


def golden_model(tokenizer, folder):
    """The random model of the tests (rule of models/random_checkpoint.cc) with one of the golden tokenizers."""
    from make_models import random_tensor
    from transformers import AutoConfig, AutoModelForCausalLM
    shutil.copytree(HERE / "tokenizers" / tokenizer, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(GOLDEN_MODEL))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if settings["tokenizer_class"] == "LlamaTokenizer":
        # That class would rebuild the tokenizer without the normalizer of the file. The file is what we test.
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.load_state_dict({k: random_tensor(k, tuple(v.shape)) for k, v in model.state_dict().items()})
    model.save_pretrained(folder)
    return model_of(folder)


def golden(_):
    out = {"config": GOLDEN_MODEL, "runs": []}
    for tokenizer in ("qwen2", "llama2-json"):  # without and with BOS
        with tempfile.TemporaryDirectory() as folder:
            lm = golden_model(tokenizer, Path(folder))
        for name, (_, _, pool) in TASKS.items():
            for shots in (0, 2) if pool else (0,):
                run = {"tokenizer": tokenizer, "task": name, "shots": shots, "items": []}
                for item in reference_items(lm, name, [HERE / "eval/data"], 0, shots):
                    item["log_likelihoods"] = [round(x, 5) for x in item["log_likelihoods"]]
                    if tokenizer != "qwen2":  # the texts do not depend on the tokenizer
                        del item["contexts"], item["continuations"]
                    run["items"].append(item)
                out["runs"].append(run)
    path = HERE / "eval/expected.json"
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace('{"tokenizer"', '\n{"tokenizer"') + "\n")
    print(path, path.stat().st_size, "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("golden").set_defaults(run=golden)
    sub = commands.add_parser("compare")
    sub.set_defaults(run=compare)
    sub.add_argument("--tool", required=True)
    sub.add_argument("--model", required=True)
    sub.add_argument("--export")
    sub.add_argument("--data", action="append", required=True)
    sub.add_argument("--tasks", default=",".join(TASKS))
    sub.add_argument("--limit", type=int, default=200)
    sub.add_argument("--shots", type=int, default=0)
    sub.add_argument("--threads", type=int, default=1)
    sub = commands.add_parser("perplexity")
    sub.set_defaults(run=perplexity)
    for option in ("--tool", "--model", "--text"):
        sub.add_argument(option, required=True)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
