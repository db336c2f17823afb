# SPDX-License-Identifier: Apache-2.0
"""Makes large language models shallower and repairs them without training.

    import shiftrt
    model = shiftrt.open("demo")
    repair = model.repair(prune="bi:0.25", recipe="stock")
    print(repair.corrected.generate("It is a truth universally acknowledged"))

docs/python.md of the repository is the manual.
"""
import os as _os

# The library finds the demo model of the wheel by this variable, and programs that are started from here do, too.
_os.environ.setdefault("SHIFTRT_DEMO", _os.path.join(_os.path.dirname(__file__), "demo"))

from . import _native
from ._model import Model, Repair, open, pull, tasks
from ._results import Evaluation, Finetuned, Generation, Perplexity, Step, Task, TaskResult
from ._transformers import from_transformers
from .errors import Error, OutOfMemory, UsageError

__version__ = _native.version()
criteria, corrections, recipes, export_formats = (_native.criteria, _native.corrections, _native.recipes,
                                                  _native.export_formats)

__all__ = ["Error", "Evaluation", "Finetuned", "Generation", "Model", "OutOfMemory", "Perplexity", "Repair", "Step", "Task",
           "TaskResult", "UsageError", "corrections", "criteria", "export_formats", "from_transformers", "open", "pull", "recipes", "tasks"]
