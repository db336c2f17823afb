# SPDX-License-Identifier: Apache-2.0
"""Options of the tests, and the table of what was compared, which is printed at the end."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


def pytest_addoption(parser):
    parser.addoption("--shiftrt", help="the program; without it only what does not need it is tested")
    parser.addoption("--real-model", help="directory of a real model in addition to the random ones, such as SmolLM2-135M-Instruct")


ROWS = pytest.StashKey()


def pytest_configure(config):
    config.stash[ROWS] = []


@pytest.fixture
def compared(request):
    """compared(what, difference, limit) asserts that difference <= limit, and adds a row to the table."""

    def add(what, difference, limit):
        case = request.node.callspec.id if hasattr(request.node, "callspec") else ""
        request.config.stash[ROWS].append((case, what, difference, limit))
        assert difference <= limit, f"{case}, {what}: {difference}, at most {limit}"

    return add


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash[ROWS]
    if not rows:
        return
    import torch
    import transformers
    terminalreporter.section(f"compared; transformers {transformers.__version__}, torch {torch.__version__}")
    for case, what, difference, limit in rows:
        shown = f"{difference:.1e}" if isinstance(difference, float) else str(difference)
        terminalreporter.write_line(f"{case:28} {what:58} {shown:>8}  (at most {limit:g})")
