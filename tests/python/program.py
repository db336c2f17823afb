# SPDX-License-Identifier: Apache-2.0
"""Runs the program for the tests: prunes models, exports them, and computes logits."""
import subprocess
from pathlib import Path

import safetensors.torch
import torch

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "demo"
# The layers of the random models and of a real one that are removed. With layer 0 among them an adapter stands before
# the first block; 3 and 4 are neighbours, so two adapters stand between the same blocks. Caches ask their first layer how many
# tokens they hold, so the first block of "halves" has no attention.
PLANS = {
    "pruned": ["--prune", "layers=1,3,4", "--correction", "none"],
    "replaceme": ["--prune", "layers=3,4", "--correction", "replaceme"],
    "low-rank": ["--prune", "layers=0,3,4", "--correction", "lra", "--lra", "8"],
    "halves": ["--prune", "layers=0.attn,2.mlp-3,5.attn", "--correction", "lra", "--lra", "8"],
    "full": ["--prune", "layers=3,4,6", "--lra", "full", "--merge", "full"],
    "portable": ["--prune", "layers=3,4,6", "--recipe", "portable"],
    "halves-alone": ["--prune", "layers=0.attn,2.mlp-3,5.attn", "--correction", "none"],
}


class Program:
    """Runs the program, and keeps what it wrote for one model, so that several tests use it."""

    def __init__(self, path, folder):
        self.path, self.folder = str(Path(path).resolve()), folder

    def run(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stderr}"
        return done.stdout

    def saved(self, model, plan):
        out = self.folder / f"{model.name}-{plan}"
        if not out.exists():
            self.run("run", "--model", model, *PLANS[plan], "--dtype", "float32", "--calib", f"{DEMO / 'calibration.txt'}:16x128",
                     "--text", DEMO / "heldout.txt", "--text-tokens", 128, "--max-tokens", 1, "--save", out, "--quiet")
        return out

    def exported(self, model, plan, form, *options):
        out = self.folder / "-".join([model.name, plan, form, *map(str, options)])
        if not out.exists():
            dtype = () if "--dtype" in options else ("--dtype", "float32")
            self.run("export", "--model", self.saved(model, plan), "--format", form, "--save", out, *dtype, *options, "--quiet")
        return out

    def logits(self, model, tokens, dtype="float32", *options):
        """(tokens, vocabulary), of one sequence."""
        file = self.folder / "dump.safetensors"
        self.run("dump", "--model", model, "--dtype", dtype, "--tokens", " ".join(map(str, tokens)), "--logits", "--out", file,
                 *options)
        return safetensors.torch.load_file(file)["logits"]


def largest(a, b):
    return (a - b).abs().max().item()


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]
