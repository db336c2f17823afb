# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness scores an export as `shiftrt eval` scores the plan: the seven suites of the paper."""
import argparse
import sys
from pathlib import Path

import pytest
from program import DEMO, Program

GOLDENS = Path(__file__).parents[1] / "goldens"
TASKS = ["boolq", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"]


@pytest.fixture(scope="module")
def sides(pytestconfig, tmp_path_factory):
    pytest.importorskip("lm_eval")
    sys.path.insert(0, str(GOLDENS))
    import make_eval
    program = pytestconfig.getoption("--shiftrt")
    if not program:
        pytest.skip("needs --shiftrt PROGRAM")
    program = Program(program, tmp_path_factory.mktemp("lm_eval"))
    export = program.exported(DEMO, "low-rank", "hf-lra")
    args = argparse.Namespace(tool=program.path, model=str(program.saved(DEMO, "low-rank")), export=str(export), limit=20, shots=0,
                              data=[str(GOLDENS / "eval" / "data")], threads=0)
    return make_eval, args, make_eval.model_of(export)


@pytest.mark.parametrize("task", TASKS)
def test_scores(sides, task, compared):
    make_eval, args, lm = sides
    result = make_eval.compare_task(args, lm, task)
    assert result["texts"] == result["tokens"] == result["greedy"] == result["prompts"] > 0
    assert result["wrong"] == 0, result["metrics"]
    compared(f"log-likelihoods of {result['prompts']} answers, largest difference", result["worst"], 1e-3)
