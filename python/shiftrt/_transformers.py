# SPDX-License-Identifier: Apache-2.0
"""Interchange with transformers, through files of safetensors in a temporary directory."""
from __future__ import annotations

import os
import tempfile


def from_transformers(model, tokenizer=None, **options):
    """A model of transformers as a shiftrt.Model. The weights are written once to a temporary directory, which lives as long as the
    models that are made of it.

    Args:
        model: a PreTrainedModel of an architecture that shiftrt knows, such as LlamaForCausalLM.
        tokenizer: its tokenizer; without it the model takes token ids only, and cannot read text.
        **options: for `shiftrt.open`: device, threads, weights, ...
    """
    from ._model import open
    directory = tempfile.TemporaryDirectory(prefix="shiftrt-")
    model.save_pretrained(directory.name, safe_serialization=True)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory.name)
    opened = open(directory.name, **options)
    opened._owner = directory
    return opened


def to_transformers(model, **options):
    """See Model.to_transformers."""
    import transformers

    # Adapters need the format that brings code for them along.
    form = "hf-lra" if model.adapters else "hf"
    with tempfile.TemporaryDirectory(prefix="shiftrt-") as parent:
        directory = os.path.join(parent, "exported")
        model.export(form, directory)
        options.setdefault("dtype", "auto")
        # The tensors are read from a mapped file, which stays mapped when its name is gone.
        return transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=form == "hf-lra", **options)
