# SPDX-License-Identifier: Apache-2.0
"""The model class of lm-evaluation-harness has the numbers of the harness's own class `hf` on the demo model."""
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
os.environ["HF_HUB_OFFLINE"] = "1"

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import shiftrt
from shiftrt.lm_eval import ShiftrtLM

DEMO = shiftrt.open("demo").directory


@pytest.fixture(scope="module")
def sides():
    return ShiftrtLM("demo", weights="float32"), HFLM(pretrained=DEMO, dtype="float32", device="cpu", batch_size=1)


def requests(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=argument, idx=i) for i, argument in enumerate(arguments)]


def text(begin, size):
    with open(os.path.join(DEMO, "heldout.txt"), encoding="utf-8") as file:
        return file.read()[begin:begin + size]


def test_loglikelihood(sides):
    asked = requests("loglikelihood", [("It is a truth", " universally"), ("It is a truth", " and the land"), ("The Lord ", "said unto"),
                                       ("", "In the beginning"), (text(0, 4000), " and"), ("Question:\n", "\tyes")])
    ours, theirs = (side.loglikelihood(asked, disable_tqdm=True) for side in sides)
    for (our, greedy), (their, their_greedy) in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, abs=1e-3) and greedy == their_greedy


def test_loglikelihood_rolling(sides):
    asked = requests("loglikelihood_rolling", [(text(0, 300),), (text(5000, 6000),)])  # within a window, and in several
    ours, theirs = (side.loglikelihood_rolling(asked, disable_tqdm=True) for side in sides)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_generate_until(sides):
    options = {"until": [".", "\n"], "max_gen_toks": 24, "do_sample": False}
    asked = requests("generate_until", [("It is a truth universally acknowledged, that", options), ("In the beginning", options),
                                        (text(0, 4000), options), ("And he said", {"until": [" the"], "max_gen_toks": 8})])
    ours, theirs = (side.generate_until(asked, disable_tqdm=True) for side in sides)
    assert ours == theirs and any(ours)


def test_the_command(tmp_path):
    rows = [{"question": text(i * 900, 200), "choices": [text(i * 900 + 200, 20), text(i * 900 + 500, 20)], "answer": 0} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(f"""task: continuations
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{tmp_path}/rows.jsonl"}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""")
    scores = []
    for name, arguments in (("shiftrt", "model=demo,weights=float32"), ("hf", f"pretrained={DEMO},dtype=float32")):
        out = tmp_path / name
        done = subprocess.run([sys.executable, "-m", "shiftrt.lm_eval", "run", "--model", name, "--model_args", arguments, "--tasks",
                               "continuations", "--include_path", tmp_path, "--device", "cpu", "--output_path", out],
                              capture_output=True, text=True, env={**os.environ, "HF_HOME": str(tmp_path / "hf")})
        assert done.returncode == 0, done.stderr[-3000:]
        results = json.loads(next(out.rglob("results_*.json")).read_text())["results"]["continuations"]
        scores.append((results["acc,none"], results["acc_norm,none"]))
    assert scores[0] == scores[1] and scores[0][0] > 0
