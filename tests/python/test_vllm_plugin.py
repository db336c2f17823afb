# SPDX-License-Identifier: Apache-2.0
"""The package export/vllm builds, and vLLM would find it. A stub stands for vLLM, so nothing here runs a model; test_vllm.py
does, where vLLM is installed."""
import importlib.metadata
import shutil
import subprocess
import sys
import types
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "export" / "vllm"


def test_builds_and_registers(tmp_path, monkeypatch):
    source, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(PACKAGE, source)  # building leaves files in the directory
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", installed,
                    source], check=True)
    (distribution,) = importlib.metadata.distributions(path=[str(installed)])
    (entry,) = distribution.entry_points.select(group="vllm.general_plugins")
    registered = {}
    stub = types.ModuleType("vllm")
    stub.ModelRegistry = types.SimpleNamespace(register_model=registered.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", stub)
    monkeypatch.syspath_prepend(installed)
    entry.load()()
    assert registered == {"ShiftrtForCausalLM": "shiftrt_vllm.model:ShiftrtForCausalLM"}
    assert (installed / "shiftrt_vllm" / "model.py").exists()
