# SPDX-License-Identifier: Apache-2.0
"""The example notebook runs from top to bottom, and its repair repairs."""
import json
from pathlib import Path

# Next to the tests, where scripts/wheel puts it, or in the source tree.
NEAR = Path(__file__).parents[1] / "repair.ipynb"
NOTEBOOK = NEAR if NEAR.exists() else Path(__file__).parents[2] / "examples" / "repair.ipynb"


def test_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102
    found = names["perplexities"]
    assert found["original"] < found["repaired"] < found["pruned"]
    assert (tmp_path / "out" / "shiftrt.json").exists()
