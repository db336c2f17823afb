#!/usr/bin/env python3
"""Records what lm-evaluation-harness does in tasks of replies: prompts, replies, filters, scores.

    pip install lm-eval==0.4.13 torch transformers
    make_replies.py golden                     writes eval/replies.json from the rows under eval/data (our own)
    make_replies.py compare --tool build/bin/shiftrt --model DIR --data DIR [--limit N] [--tasks a,b] [--json FILE]
                                               runs `shiftrt eval` and the reference on the same rows, one after the other
                                               for each task, and compares replies, scores and seconds

The reference's own task definitions, few-shot sampling, tokenisation, generation and filters run unchanged. Its download
is replaced by local files. The metric code_eval, which the reference downloads as code, is replaced by a process of Python
for each program, which ends after 3 seconds.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import evaluate

HERE = Path(__file__).resolve().parent
SEED = 1234  # the seed of the reference's few-shot sampler, as set by its command line


RUN = """import sys
try:
    exec(sys.stdin.read(), {})
except BaseException:
    sys.exit(1)
"""


def passes(program):
    try:
        return subprocess.run([sys.executable, "-I", "-c", RUN], input=program.encode(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=3).returncode == 0
    except subprocess.TimeoutExpired:
        return False


class CodeEval:
    def compute(self, references, predictions, k):
        right = [passes(candidates[0] + "\n" + test) for test, candidates in zip(references, predictions)]
        return {"pass@1": sum(right) / len(right)}, {}


evaluate.load = lambda *_, **__: CodeEval()  # the reference calls it when it imports its task
import datasets
import lm_eval.api.task
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

# Our metrics and the reference's, by its filter.
NUMBER = {"strict-match": ("strict-match", "exact_match"), "flexible-extract": ("flexible-extract", "exact_match")}
METRICS = {"gsm8k": NUMBER, "gsm8k_cot": NUMBER,
           "humaneval": {"pass@1": ("create_test", "pass@1")}, "humaneval_instruct": {"pass@1": ("create_test", "pass@1")}}


def json_lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def reference_task(name, data):
    files = {"test": "humaneval.jsonl"}
    if name.startswith("gsm8k"):
        files = {"train": "gsm8k_train.jsonl", "test": "gsm8k_test.jsonl"}

    def load(*_, **__):
        return datasets.DatasetDict({split: datasets.Dataset.from_list(json_lines(Path(data) / file)) for split, file in files.items()})

    lm_eval.api.task.datasets.load_dataset = load
    task = TaskManager().load([name])["tasks"][name]
    shots = Path(data) / "gsm8k_cot_shots.jsonl"
    if name == "gsm8k_cot" and shots.exists():  # the golden prompts have shots of our own
        task.config.fewshot_config.samples = json_lines(shots)
        task.sampler.df = json_lines(shots)
    return task


def build(task, limit, shots=None):
    if shots is not None:
        task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=SEED)
    task.build_all_requests(limit=limit or None, rank=0, world_size=1)
    return sorted(task.instances, key=lambda instance: instance.doc_id)


def judged(task, name, document, reply):
    """Our names of metrics and whether the reference takes the reply for right by them."""
    instance = Instance(request_type="generate_until", doc=document, arguments=(), idx=0, resps=[reply])
    for ensemble in task._filters:
        ensemble.apply([instance])
    return {ours: bool(task.process_results(document, [instance.filtered_resps[theirs]])[metric])
            for ours, (theirs, metric) in METRICS[name].items()}


def model_of(path, batch):
    return HFLM(pretrained=str(path), dtype="float32", device="cpu", batch_size=batch)


# Replies with which the filters have a hard time.
NUMBERS = ["", "12", "#### 12", "####12", "#### -12", "#### - 12", "#### 12.", "#### $12", "a #### x #### 12", "#### 1,2", "#### 12 #### 13", "####  12",
           "The answer is 12.", "12 apples, 13 pears", "$12", "-12", "--12", "1-2", "12-", "-$12", "12.00", "12..", ",", "...", "a. b, c", "-", "$", "5.", "-.", "-5",
           "١٢", "twelve\n#### 12\n\nQuestion: 13", "#### 12\n#### 14", "6,000", "$6000", "#### 6000", "#### 6,000.", "#### 6000.0", "the cost is $6,000.00.",
           "#### -4", "-4.", "minus 4", "4", "#### .", "#### ,", "#### -,", "12,", "1 2", "x12y", "12é", "[invalid]"]
SENTENCES = [start + number + end for start in ("The answer is ", "So the answer is ", "The answer is  ", "The answer is $", "The answer is -")
             for number in ("3", "12", "6,000", "12.", "") for end in ("", ".", "\n", ". \n", " eggs")] + [
                 "", "12", "The answer is", "the answer is 12.", "The answer is 3. The answer is 12.", "The answer is x. The answer is 12.", "The answer is 1",
                 "The answer is -.", "The answer is --3.", "The answer is 3\nThe answer is 12.\n", "#### 12", "The answer is 12é"]
PROGRAMS = ["    return 2 * x\n", "    return 2 * x\n```\nand more", "```python\n    return 2 * x", "    return x\n", "", "    return (\n", "    raise SystemExit(0)\n",
            "    return x + x\n\n\nimport os\n"]


def golden_model(tokenizer, positions, folder):
    import make_eval
    make_eval.GOLDEN_MODEL["max_position_embeddings"] = positions
    make_eval.golden_model(tokenizer, Path(folder))
    return model_of(folder, 1)


def golden(_):
    data = HERE / "eval/data"
    out = {"prompts": [], "numbers": [], "programs": [], "runs": [], "stops": []}
    for name, shots in (("gsm8k", None), ("gsm8k", 0), ("gsm8k", 3), ("gsm8k_cot", None), ("gsm8k_cot", 0), ("humaneval", None),
                        ("humaneval_instruct", None)):
        instances = build(reference_task(name, data), 0, shots)
        out["prompts"].append({"task": name, "shots": shots, "contexts": [instance.args[0] for instance in instances],
                               "until": instances[0].args[1]["until"],
                               "max_tokens": instances[0].args[1].get("max_gen_toks", 256)})
    documents = json_lines(data / "gsm8k_test.jsonl")
    for name, replies in (("gsm8k", NUMBERS), ("gsm8k_cot", SENTENCES)):
        task = reference_task(name, data)
        for row, document in enumerate(documents):
            for reply in replies:
                out["numbers"].append([name, row, reply, *judged(task, name, document, reply).values()])
    document = json_lines(data / "humaneval.jsonl")[0]
    for name in ("humaneval", "humaneval_instruct"):
        task = reference_task(name, data)
        for reply in PROGRAMS:
            instance = Instance(request_type="generate_until", doc=document, arguments=(), idx=0, resps=[reply])
            for ensemble in task._filters:
                ensemble.apply([instance])
            program = instance.filtered_resps["create_test"][0] + "\n" + task.doc_to_target(document)
            out["programs"].append([name, reply, program, judged(task, name, document, reply)["pass@1"]])
    for tokenizer in ("qwen2", "llama2-json"):  # without and with BOS
        # 300 positions are fewer than most prompts and replies have.
        for name, positions in (("gsm8k", 300), ("humaneval", 1300)):
            with tempfile.TemporaryDirectory() as folder:
                lm = golden_model(tokenizer, positions, folder)
                instances = build(reference_task(name, data), 0)
                decode, tokens = lm.tok_decode, []

                def decode_and_note(ids, **settings):
                    if not settings:  # the reply; other calls have settings
                        tokens.append(list(ids))
                    return decode(ids, **settings)

                lm.tok_decode = decode_and_note
                replies = [lm.generate_until([instance], disable_tqdm=True)[0] for instance in instances]
                lm.tok_decode = decode
                room = positions - instances[0].args[1].get("max_gen_toks", 256)
                out["runs"].append({"tokenizer": tokenizer, "task": name, "positions": positions, "replies": replies, "tokens": tokens,
                                    "prompts": [lm.tok_batch_encode([instance.args[0]], left_truncate_len=room)[0][0].tolist()
                                                for instance in instances]})
                if name == "humaneval":
                    continue
                for instance in instances:
                    kwargs = {"until": [], "max_gen_toks": 40, "do_sample": False}

                    def reply_to(until):
                        asked = Instance(request_type="generate_until", doc={}, arguments=(instance.args[0], {**kwargs, "until": until}), idx=0)
                        return lm.generate_until([asked], disable_tqdm=True)[0]

                    whole = reply_to([])
                    for until in ([whole[6:8]], [whole[20:23], whole[11:13]], [whole[-3:]], ["never there"], [whole[:1]]):
                        until = [text for text in until if text]
                        out["stops"].append({"tokenizer": tokenizer, "context": instance.args[0], "until": until, "positions": positions,
                                             "reply": reply_to(until)})
    path = HERE / "eval/replies.json"
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":"))
    for begin in ('{"task"', '{"tokenizer"', '["humaneval', '["gsm8k'):
        text = text.replace(begin, "\n" + begin)
    path.write_text(text + "\n")
    print(path, path.stat().st_size, "bytes")


def reference_run(lm, name, args):
    task = reference_task(name, args.data)
    instances = build(task, args.limit)
    begin, cpu = time.time(), time.process_time()
    replies = lm.generate_until(instances)
    seconds, cpu = time.time() - begin, time.process_time() - cpu
    return [{"context": instance.args[0], "reply": reply, "right": judged(task, name, instance.doc, reply)}
            for instance, reply in zip(instances, replies)], seconds, cpu


def our_run(name, args, folder):
    items, result = folder / "items.jsonl", folder / "result.json"
    command = [args.tool, "eval", "--model", args.model, "--dtype", "float32", "--tasks", name, "--limit", str(args.limit), "--items",
               str(items), "--json", str(result), "--data", args.data, "--threads", str(args.threads), "--journal", str(folder / "journal"),
               "--quiet"]
    if name.startswith("humaneval"):
        command.append("--allow-code")
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return json_lines(items), json.load(open(result))["tasks"][0], cpu


def first_difference(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def compare(args):
    import torch
    torch.set_num_threads(args.threads)
    lm = model_of(args.model, args.batch)
    record = {"model": Path(args.model).name, "dtype": "float32", "threads": args.threads, "reference_batch": args.batch, "tasks": []}
    wrong = 0
    for name in args.tasks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            ours, result, our_cpu = our_run(name, args, Path(folder))
        theirs, seconds, cpu = reference_run(lm, name, args)
        assert len(ours) == len(theirs), f"{name}: {len(ours)} items of ours, {len(theirs)} of the reference"
        task = {"task": name, "rows": len(theirs), "prompts_equal": 0, "replies_equal": 0, "seconds": result["seconds"],
                "reference_seconds": seconds, "ratio": seconds / result["seconds"], "cpu_seconds_with_loading": our_cpu,
                "reference_cpu_seconds": cpu, "cpu_ratio": cpu / our_cpu, "right": {}, "reference_right": {}, "differences": []}
        for metric in METRICS[name]:
            task["right"][metric] = sum(a["variants"]["original"]["right"][metric] for a in ours)
            task["reference_right"][metric] = sum(b["right"][metric] for b in theirs)
        for metric in ("repeated_4grams", "reply_tokens"):
            task[metric] = result["variants"][0]["metrics"][metric]["value"]
        for row, (a, b) in enumerate(zip(ours, theirs)):
            mine = a["variants"]["original"]
            task["prompts_equal"] += a["contexts"] == b["context"]
            same = mine["reply"] == b["reply"]
            task["replies_equal"] += same
            if not same or mine["right"] != b["right"]:
                at = first_difference(mine["reply"], b["reply"])
                task["differences"].append({"row": row, "character": at, "ours": mine["reply"][at:at + 60], "reference": b["reply"][at:at + 60],
                                            "right": mine["right"], "reference_right": b["right"]})
        wrong += task["prompts_equal"] != task["rows"]
        record["tasks"].append(task)
        print(json.dumps(task, ensure_ascii=False, indent=1), flush=True)
    if args.json:
        json.dump(record, open(args.json, "w"), ensure_ascii=False, indent=1)
    sys.exit(wrong > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("golden").set_defaults(run=golden)
    sub = commands.add_parser("compare")
    sub.set_defaults(run=compare)
    for option in ("--tool", "--model", "--data"):
        sub.add_argument(option, required=True)
    sub.add_argument("--tasks", default=",".join(METRICS))
    sub.add_argument("--limit", type=int, default=50)
    sub.add_argument("--threads", type=int, default=2)
    sub.add_argument("--batch", type=int, default=8, help="prompts that the reference continues together")
    sub.add_argument("--json", help="write the record to this file")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
