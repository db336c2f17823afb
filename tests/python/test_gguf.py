# SPDX-License-Identifier: Apache-2.0
"""The tensors and the tokenizer of GGUF exports, read by the package gguf. test_exports.py runs them in transformers."""
import gguf
import numpy
import pytest
import safetensors.torch
from program import DEMO
from test_exports import PROMPT, model, program, random_models  # noqa: F401  (fixtures)
from transformers import AutoTokenizer

TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
BLOCK = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


@pytest.fixture(params=["pruned", "replaceme"])
def plan(request):
    return request.param


def interleaved(rows, heads):
    """The order of rows in Llama's GGUF files, as convert_hf_to_gguf.py makes it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors(program, model, plan, dtype, compared):
    """Each tensor is that of the format hf; Q8_0 has the bits that the package itself makes of it."""
    source = "float32" if dtype == "q8_0" else dtype
    export = program.exported(model, plan, "gguf", "--dtype", dtype) / "model.gguf"
    expected = safetensors.torch.load_file(program.exported(model, plan, "hf", "--dtype", source) / "model.safetensors")
    reader = gguf.GGUFReader(export)
    architecture = reader.fields["general.architecture"].contents()
    heads = {key: reader.fields[f"{architecture}.attention.{name}"].contents()
             for key, name in [("attn_q", "head_count"), ("attn_k", "head_count_kv")]}
    wrong, blocks = 0, 0
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":  # by what llama.cpp divides the frequencies
            continue
        name = WHOLE.get(tensor.name)
        part = None
        if name is None:
            _, layer, part, end = tensor.name.split(".")
            name = f"model.layers.{layer}.{BLOCK[part]}.{end}"
        values = expected.pop(name).float().numpy()
        if architecture == "llama" and part in heads:
            values = interleaved(values, heads[part])
        kind = TYPES[dtype] if values.ndim == 2 else "F32"
        if kind == "Q8_0" and values.shape[1] % 32:
            kind = "F16"
        assert tensor.tensor_type.name == kind, tensor.name
        packed = gguf.quantize(numpy.ascontiguousarray(values), tensor.tensor_type)
        wrong += tensor.data.tobytes() != packed.tobytes()
        blocks += 1
    assert not expected
    compared(f"gguf {dtype}: tensors that differ, of {blocks}", wrong, 0)


def test_tokenizer(program):
    export = program.exported(DEMO, "pruned", "gguf")
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    ids = program.run("tokenize", "--model", export / "model.gguf", "--ids", PROMPT).split()
    assert [int(i) for i in ids] == tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
