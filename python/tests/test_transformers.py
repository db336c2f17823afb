# SPDX-License-Identifier: Apache-2.0
"""Models go to transformers and come from there with the same logits."""
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
os.environ["HF_HUB_OFFLINE"] = "1"

import shiftrt

PROMPT = "It is a truth universally acknowledged, that"


def logits_of(module, ids):
    with torch.no_grad():
        return module(torch.tensor([ids])).logits[0].float().numpy()


@pytest.fixture(scope="module")
def model():
    return shiftrt.open("demo", weights="float32")


def test_from_transformers(model):
    module = transformers.AutoModelForCausalLM.from_pretrained(model.directory, dtype=torch.float32)
    with torch.no_grad():
        module.model.layers[3].mlp.down_proj.weight *= 0.5  # a change that no file has
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.directory)
    ours = shiftrt.from_transformers(module, tokenizer)
    ids = ours.encode(PROMPT)
    assert ids == tokenizer(PROMPT)["input_ids"]
    np.testing.assert_allclose(ours.logits(ids), logits_of(module, ids), atol=1e-4)
    pruned = ours.without([3])
    del ours  # its files stay for the model that was made of it
    assert pruned.generate(PROMPT, max_tokens=4).text
    without_tokenizer = shiftrt.from_transformers(module)
    np.testing.assert_allclose(without_tokenizer.logits(ids), logits_of(module, ids), atol=1e-4)
    with pytest.raises(shiftrt.Error):
        without_tokenizer.encode(PROMPT)


@pytest.mark.parametrize("settings", [{"recipe": "stock"}, {"rank": 8}], ids=["stock", "adapters"])
def test_to_transformers(model, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    corrected = model.repair("bi:0.25", samples=16, tokens=64, **settings).corrected
    module = corrected.to_transformers()
    assert module.config.num_hidden_layers >= corrected.blocks
    ids = model.encode(PROMPT)
    np.testing.assert_allclose(logits_of(module, ids), corrected.logits(ids), atol=1e-3)
