# SPDX-License-Identifier: Apache-2.0
"""The two files that an hf-lra export carries, on random models of every family. Nothing here needs the program."""
import copy
import json
import shutil

import pytest
import safetensors.torch
import torch
import transformers
from random_export import ADAPTERS, ARCHITECTURES, FILES, HALF_BLOCKS, LAYERS, SHAPE, VOCABULARY, RandomExport
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = torch.arange(3, 35).reshape(2, 16) * 5 % VOCABULARY


def logits(model, tokens=TOKENS, **kwargs):
    with torch.no_grad():
        return model(tokens, **kwargs).logits


def largest(a, b):
    return (a - b).abs().max().item()


@pytest.fixture(scope="module", params=[(family, halves) for family in ARCHITECTURES for halves in (False, True)],
                ids=lambda case: case[0] + ("-halves" if case[1] else ""))
def export(request, tmp_path_factory):
    family, halves = request.param
    return RandomExport(tmp_path_factory.mktemp(family), family, HALF_BLOCKS if halves else ())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return RandomExport(tmp_path_factory.mktemp("llama"), "llama")


def test_logits(export):
    model = export.load()
    assert type(model).__name__ == "ShiftrtForCausalLM"
    assert isinstance(model, getattr(transformers, ARCHITECTURES[export.family]))
    assert largest(logits(model), logits(export.oracle)) < 1e-5


@pytest.mark.parametrize("halves", [(), HALF_BLOCKS], ids=["blocks", "halves"])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_norms_of_adapters(family, halves, tmp_path):
    export = RandomExport(tmp_path, family, halves, norms=True)
    assert largest(logits(export.load()), logits(export.oracle)) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "granite"])
def test_widths_of_mlps(family, tmp_path):
    """One MLP has its first 64 units alone, and the oracle zeros behind the others."""
    export, units = RandomExport(tmp_path, family), 64
    config = json.loads((tmp_path / "config.json").read_text())
    config["shiftrt"] |= {"format": 3, "mlp_units": [SHAPE["intermediate_size"], units, *[SHAPE["intermediate_size"]] * (LAYERS - 2)]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name in ("gate_proj", "up_proj", "down_proj"):
        key = f"model.layers.1.mlp.{name}.weight"
        tensors[key] = (tensors[key][:, :units] if name == "down_proj" else tensors[key][:units]).contiguous()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    export.oracle.model.layers[1].mlp.down_proj.weight.data[:, units:] = 0
    assert largest(logits(export.load()), logits(export.oracle)) < 1e-5


def test_every_adapter_counts(export):
    model = export.load()
    before = logits(model)
    named = dict(model.named_parameters())
    for adapter in ADAPTERS:
        kind = "linear" if adapter["kind"] == "full" else "up"
        bias = named[f"model.layers.{adapter['layer']}.adapters_{adapter['where']}.{adapter['index']}.{kind}.bias"]
        kept = bias.data.clone()
        bias.data.add_(torch.linspace(-1, 1, bias.numel()))  # not a constant, which LayerNorm takes out
        assert largest(logits(model), before) > 1e-3
        bias.data.copy_(kept)


def test_a_half_that_is_left_out_has_no_weights(export):
    names = {name for name, _ in export.load().named_parameters()}
    for block in export.half_blocks:
        place, gone = f"model.layers.{block['layer']}.", {"mlp": "self_attn.", "attention": "mlp."}[block["runs"]]
        assert any(name.startswith(place) for name in names)
        assert not any(name.startswith(place + gone) for name in names)


def test_static_cache(export):
    model = export.load()
    texts = [model.generate(TOKENS, max_new_tokens=12, do_sample=False, cache_implementation=kind, eos_token_id=None, pad_token_id=0)
             for kind in ("dynamic", "static")]
    assert torch.equal(*texts)


def test_generate(export):
    model = export.load()
    texts = [m.generate(TOKENS, max_new_tokens=24, do_sample=False, use_cache=cache, eos_token_id=None, pad_token_id=0)
             for m, cache in ((model, True), (model, False), (export.oracle, True))]
    assert texts[0].shape == (2, 40)
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


def test_hidden_states(export):
    model = export.load()
    states = model(TOKENS, output_hidden_states=True).hidden_states
    assert len(states) == LAYERS + 1
    inputs = []
    model.model.layers[2].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    logits(model)
    assert largest(states[2], inputs[0]) == 0  # after the adapters of layer 1


def test_gradients(export):
    model = export.load().train()
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        assert all(g.abs().max() > 0 for g in grads.values() if g.dim() == 2)
        if checkpointing:
            assert max(largest(g, plain[name]) for name, g in grads.items()) < 1e-5
        plain = grads


def test_save_and_load(export, tmp_path):
    model = export.load()
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    original = json.loads((export.directory / "config.json").read_text())
    for key in ("model_type", "architectures", "auto_map", "shiftrt"):
        assert saved[key] == original[key]
    for name in ("configuration_shiftrt.py", "modeling_shiftrt.py"):
        assert (tmp_path / name).read_text() == (FILES / name).read_text()
    assert all(getattr(model.config, key, None) == getattr(AutoConfig.from_pretrained(tmp_path, trust_remote_code=True), key, None)
               for key in SHAPE)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, **export.options).eval()
    assert largest(logits(again), logits(model)) == 0
    direct = type(model).from_pretrained(tmp_path, **export.options).eval()
    assert largest(logits(direct), logits(model)) == 0


def test_bfloat16(export):
    model = export.load(torch_dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    exact = logits(export.oracle)
    rounded = logits(copy.deepcopy(export.oracle).to(torch.bfloat16)).float()
    mine = logits(model).float()
    # The oracle's adapters compute in float32. Those of the export compute in bfloat16, as its blocks do.
    assert (mine - exact).norm() < 2 * (rounded - exact).norm() + 1e-3 * exact.norm()


def test_copy(llama):
    model = llama.load()
    assert largest(logits(copy.deepcopy(model)), logits(model)) == 0


def test_from_config(llama):
    config = AutoConfig.from_pretrained(llama.directory, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    assert model.state_dict().keys() == llama.load().state_dict().keys()


def test_compile(llama):
    model = llama.load()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        got = compiled(TOKENS, use_cache=False).logits
    assert largest(got, logits(model)) < 1e-5


def test_device_map(llama, tmp_path):
    from accelerate import infer_auto_device_map
    model = llama.load()
    layer = sum(p.numel() * 4 for p in model.model.layers[1].parameters())
    embedding = model.model.embed_tokens.weight.numel() * 4
    places = infer_auto_device_map(model, max_memory={"cpu": embedding + int(layer * 2.5), "disk": 10**9},
                                   no_split_module_classes=model._no_split_modules)
    assert any(place == f"model.layers.{k}" for place in places for k in range(LAYERS))
    assert not any(place.startswith("model.layers.") and place.count(".") > 2 for place in places)
    # Loaded with such a map, some layers lie on the disk and are read when they run.
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu",
              **{f"model.layers.{k}": "disk" if k % 2 else "cpu" for k in range(LAYERS)}}
    split = llama.load(device_map=places, offload_folder=tmp_path)
    assert largest(logits(split), logits(model)) < 1e-5


def test_peft(export):
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(export.load(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert any("adapters_after" in name and "lora_A" in name for name, _ in model.named_parameters())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(TOKENS, labels=TOKENS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01
    trained = logits(model)
    assert largest(logits(model.merge_and_unload()), trained) < 1e-3


def test_padding(export):
    model = export.load()
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), TOKENS[:, :5]], 1)
    mask = torch.cat([torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)], 1)
    alone = model.generate(TOKENS[:, :5], max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    batched = model.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(alone[:, 5:], batched[:, 8:])


@pytest.mark.parametrize("change, message", [
    ({"format": 4}, "shiftrt.format is 4"),
    ({"base_model_type": "bert"}, "'bert'; known are llama"),
    ({"base_architecture": "MistralForCausalLM"}, "that of llama is LlamaForCausalLM"),
    ({"adapters": [{**ADAPTERS[0], "layer": 4}]}, "layers 0 to 3"),
    ({"adapters": [{**ADAPTERS[0], "where": "beside"}]}, "'beside'"),
    ({"adapters": [{**ADAPTERS[0], "kind": "diagonal"}]}, "'diagonal'"),
    ({"adapters": [{**ADAPTERS[0], "rank": 0}]}, "rank = 0"),
    ({"adapters": [{**ADAPTERS[0], "index": 1}]}, "not 0, 1"),
    ({"half_blocks": HALF_BLOCKS}, "cannot be in format 1"),
    ({"format": 2, "half_blocks": [{"layer": 4, "runs": "mlp"}]}, "layers 0 to 3"),
    ({"format": 2, "half_blocks": [{"layer": 1, "runs": "both"}]}, "'both'; known are"),
    ({"format": 2, "half_blocks": [HALF_BLOCKS[0], HALF_BLOCKS[0]]}, "listed twice"),
])
def test_refuses(llama, tmp_path, change, message):
    shutil.copytree(llama.directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["shiftrt"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
