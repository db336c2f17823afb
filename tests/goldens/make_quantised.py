#!/usr/bin/env python3
"""Makes the files under quantised/: one matrix for each way in which Hugging Face checkpoints store quantised ones.

Each file has the tensors of the module `up_proj` as a checkpoint holds them, the tensor `expected`, to which the reference expands
them in 16 bits, and in its metadata the `quantization_config` of config.json and the name of the reference. The references are
transformers (FP8, MXFP4), compressed-tensors, GPTQModel (GPTQ) and AutoAWQ (AWQ). torch computes the two forms that these do not read.

mxfp4_experts.safetensors has matrices of experts, as gpt-oss stores them.

The settings, the types and the shapes of each file go to ../fuzz/corpus/quantised/, in the form that the fuzz target reads.

Needs torch, transformers, safetensors, compressed-tensors, gptqmodel and the sources of autoawq. Usage: make_quantised.py
"""
import importlib.util
import json
import os
import sys

import torch
from safetensors.torch import save_file

ROWS, COLUMNS, GROUP = 16, 64, 32
GOLDENS = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(GOLDENS, "quantised")
CORPUS = os.path.join(GOLDENS, "..", "fuzz", "corpus", "quantised")
RANDOM = torch.Generator().manual_seed(55)
FLOAT8, POWERS = torch.float8_e4m3fn, torch.float8_e8m0fnu
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
         torch.int8: "I8", torch.uint8: "U8", FLOAT8: "F8_E4M3", POWERS: "F8_E8M0"}


def codes(bits, *shape):
    return torch.randint(0, 1 << bits, shape, generator=RANDOM, dtype=torch.int32)


def normal(*shape):
    return torch.randn(shape, generator=RANDOM)


def scales_of(*shape, dtype=torch.float32):
    return (0.01 + torch.rand(shape, generator=RANDOM) / 16).to(dtype)


def all_float8(rows, columns):
    """Every code of E4M3 but the two that are not a number."""
    every = torch.arange(256, dtype=torch.int32)
    every = every[every % 128 != 127]
    picked = torch.cat([every, every[torch.randint(0, len(every), (rows * columns - len(every),), generator=RANDOM)]])
    return picked.to(torch.uint8).reshape(rows, columns).view(FLOAT8)


def pack(values, bits, dim):
    """Codes along a dimension in 32-bit words, the first code in the lowest bits."""
    per_word = 32 // bits
    values = values.movedim(dim, -1).to(torch.int64)
    values = torch.nn.functional.pad(values, (0, -values.shape[-1] % per_word))
    words = (values.reshape(*values.shape[:-1], -1, per_word) << torch.arange(0, 32, bits)).sum(-1)
    return (words - ((words >> 31) << 32)).to(torch.int32).movedim(-1, dim).contiguous()


# FP8 and MXFP4 as transformers reads them.

def fp8(scales, name="weight_scale_inv", block=None, method="fp8", **more):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = all_float8(ROWS, COLUMNS)
    config = {"quant_method": method, "weight_block_size": block, **more}
    reference = "transformers"
    if block and (ROWS % block[0] or COLUMNS % block[1]):
        reference = "torch, the formula of DeepSeek-V3's fp8_cast_bf16.py"
        whole = scales.repeat_interleave(block[0], 0)[:ROWS].repeat_interleave(block[1], 1)[:, :COLUMNS]
        expected = (weight.float() * whole).to(torch.bfloat16)
    else:
        expected = Fp8Dequantize(None)._dequantize_one(weight, scales, output_dtype=torch.bfloat16)
    return {"weight": weight, name: scales}, config, expected, reference


def mxfp4():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = codes(8, ROWS, COLUMNS // 32, 16).to(torch.uint8)
    scales = torch.randint(110, 130, (ROWS, COLUMNS // 32), generator=RANDOM).to(torch.uint8)
    expected = convert_moe_packed_tensors(blocks[None], scales[None])[0].T.contiguous()
    return {"weight_blocks": blocks, "weight_scales": scales}, {"quant_method": "mxfp4"}, expected, "transformers"


def experts():
    """The tensors of gpt-oss for two experts of 32 units and a stream of 64, and what transformers expands them to."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    random, tensors = torch.Generator().manual_seed(7), {}
    for name, rows, columns in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
        blocks = torch.randint(0, 256, (2, rows, columns // 32, 16), generator=random).to(torch.uint8)
        scales = torch.randint(110, 130, (2, rows, columns // 32), generator=random).to(torch.uint8)
        tensors.update({f"{name}_blocks": blocks, f"{name}_scales": scales,
                        f"expected.{name}": convert_moe_packed_tensors(blocks, scales).contiguous()})
    save_file(tensors, os.path.join(GOLDENS, "mxfp4_experts.safetensors"))


# compressed-tensors.

def compressed(format, tensors, **weights):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    expected = BaseCompressor.get_value_from_registry(format).decompress(dict(tensors), scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}
    return tensors, config, expected.contiguous(), "compressed-tensors"


def compressed_float8(format, scales, **weights):
    return compressed(format, {"weight": all_float8(ROWS, COLUMNS), "weight_scale": scales}, num_bits=8, type="float", **weights)


def compressed_int8():
    tensors = {"weight": (codes(8, ROWS, COLUMNS) - 128).to(torch.int8), "weight_scale": scales_of(ROWS, 1, dtype=torch.bfloat16),
               "weight_zero_point": (codes(8, ROWS, 1) - 128).to(torch.int8)}
    return compressed("int-quantized", tensors, num_bits=8, type="int", strategy="channel", symmetric=False)


def compressed_words(bits, groups, symmetric, dtype=torch.bfloat16):
    tensors = {"weight_packed": pack(codes(bits, ROWS, COLUMNS), bits, 1), "weight_scale": scales_of(ROWS, groups, dtype=dtype),
               "weight_shape": torch.tensor([ROWS, COLUMNS])}
    if not symmetric:
        tensors["weight_zero_point"] = pack(codes(bits, ROWS, groups), bits, 0)
    weights = {"strategy": "channel"} if groups == 1 else {"strategy": "group", "group_size": COLUMNS // groups}
    return compressed("pack-quantized", tensors, num_bits=bits, type="int", symmetric=symmetric, **weights)


def compressed_ordered():
    """Columns in an order of their own, which this version of compressed-tensors has no longer."""
    tensors, config, _, _ = compressed_words(4, COLUMNS // GROUP, False)
    group = torch.randperm(COLUMNS, generator=RANDOM).to(torch.int32) // GROUP
    shifts = torch.arange(0, 32, 4)
    values = (tensors["weight_packed"][:, :, None] >> shifts & 15).reshape(ROWS, COLUMNS)
    zeros = (tensors["weight_zero_point"][:, None, :] >> shifts[:, None] & 15).reshape(ROWS, -1)[:, group.long()]
    expected = ((values - zeros) * tensors["weight_scale"][:, group.long()].float()).to(torch.bfloat16)
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    return {**tensors, "weight_g_idx": group}, config, expected, "torch"


def compressed_float4(format, groups, scales, **more):
    tensors = {"weight_packed": codes(8, ROWS, COLUMNS // 2).to(torch.uint8), "weight_scale": scales, **more}
    strategy = "tensor_group" if more else "group"
    return compressed(format, tensors, num_bits=4, type="float", strategy=strategy, group_size=COLUMNS // groups, symmetric=True)


# GPTQ and AWQ.

def gptq(bits, version=1, ordered=False, group=GROUP, dtype=torch.float16):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module

    groups = COLUMNS // group if group > 0 else 1
    layer = TorchLinear(bits=bits, group_size=group, sym=False, desc_act=ordered, in_features=COLUMNS, out_features=ROWS, bias=False,
                        pack_dtype=torch.int32)
    index = torch.arange(COLUMNS) // (group if group > 0 else COLUMNS)
    layer.qweight = pack(codes(bits, COLUMNS, ROWS), bits, 0)
    layer.qzeros = pack(codes(bits, groups, ROWS), bits, 1)
    layer.scales = scales_of(groups, ROWS, dtype=dtype)
    layer.g_idx = (index[torch.randperm(COLUMNS, generator=RANDOM)] if ordered else index).to(torch.int32)
    if version == 1:
        convert_gptq_v2_to_v1_format_module(layer, FakeSettings(bits))
    tensors = {name: getattr(layer, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
    if version == 1:
        convert_gptq_v1_to_v2_format_module(layer, bits=bits, pack_dtype=torch.int32)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": False,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    return tensors, config, layer.dequantize_weight().T.contiguous().to(dtype), "GPTQModel"


class FakeSettings:
    """The settings that GPTQModel reads."""

    def __init__(self, bits):
        self.bits, self.pack_dtype = bits, torch.int32


def awq(group=GROUP):
    place = importlib.util.find_spec("awq").submodule_search_locations[0]  # the package itself needs an older transformers
    spec = importlib.util.spec_from_file_location("packing", os.path.join(place, "utils", "packing_utils.py"))
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    groups = COLUMNS // group if group > 0 else 1
    tensors = {"qweight": pack(codes(4, COLUMNS, ROWS), 4, 1), "qzeros": pack(codes(4, groups, ROWS), 4, 1),
               "scales": scales_of(groups, ROWS, dtype=torch.float16)}
    expected = packing.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"], 4, group if group > 0 else COLUMNS)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return tensors, config, expected.T.contiguous(), "AutoAWQ"


CASES = {
    "fp8_blocks": lambda: fp8(scales_of(2, 2), block=[8, 32]),
    "fp8_blocks_bfloat16": lambda: fp8(scales_of(2, 2, dtype=torch.bfloat16), block=[8, 32]),
    "fp8_blocks_powers": lambda: fp8(torch.tensor([[0.5, 2.0], [0.125, 1.0]]).to(POWERS), block=[8, 32], scale_fmt="ue8m0"),
    "fp8_blocks_cut": lambda: fp8(scales_of(2, 2), block=[12, 48]),
    "fp8_tensor": lambda: fp8(torch.tensor(0.03, dtype=torch.bfloat16), activation_scheme="static"),
    "fp8_rows": lambda: fp8(scales_of(ROWS, 1), name="weight_scale"),
    "fbgemm_fp8": lambda: fp8(scales_of(ROWS, 1), name="weight_scale", method="fbgemm_fp8"),
    "mxfp4": mxfp4,
    "compressed_fp8_tensor": lambda: compressed_float8("naive-quantized", scales_of(1, dtype=torch.bfloat16), strategy="tensor"),
    "compressed_fp8_channel": lambda: compressed_float8("float-quantized", scales_of(ROWS, 1, dtype=torch.bfloat16), strategy="channel"),
    "compressed_fp8_block": lambda: compressed_float8("float-quantized", scales_of(2, 2), strategy="block", block_structure=[8, 32]),
    "compressed_mxfp8": lambda: compressed_float8("mxfp8-quantized", codes(3, ROWS, 2).to(torch.uint8) + 119, strategy="group",
                                                  group_size=32),
    "compressed_int8": compressed_int8,
    "compressed_words4": lambda: compressed_words(4, 2, True),
    "compressed_words4_zeros": lambda: compressed_words(4, 2, False, torch.float16),
    "compressed_words8": lambda: compressed_words(8, 1, True),
    "compressed_words4_ordered": compressed_ordered,
    "compressed_mxfp4": lambda: compressed_float4("mxfp4-pack-quantized", 2, codes(3, ROWS, 2).to(torch.uint8) + 119),
    "compressed_nvfp4": lambda: compressed_float4("nvfp4-pack-quantized", 4, scales_of(ROWS, 4).mul(100).to(FLOAT8),
                                                  weight_global_scale=torch.tensor([7.0])),
    "gptq4": lambda: gptq(4),
    "gptq4_ordered": lambda: gptq(4, ordered=True),
    "gptq4_version2": lambda: gptq(4, version=2),
    "gptq4_whole": lambda: gptq(4, group=-1, dtype=torch.bfloat16),
    "gptq8": lambda: gptq(8),
    "gptq2": lambda: gptq(2),
    "awq": awq,
    "awq_whole": lambda: awq(-1),
}


def main():
    os.makedirs(OUT, exist_ok=True)
    os.makedirs(CORPUS, exist_ok=True)
    experts()
    for name, make in CASES.items():
        tensors, config, expected, reference = make()
        assert expected.shape == (ROWS, COLUMNS) and expected.isfinite().all() and expected.element_size() in (2, 4), name
        if expected.dtype == torch.float32:  # of scales in float32; they are read as bfloat16
            expected = expected.to(torch.bfloat16)
        stored = {f"up_proj.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        save_file({**stored, "expected": expected}, os.path.join(OUT, f"{name}.safetensors"),
                  {"golden": json.dumps({"quantization_config": config, "reference": reference})})
        with open(os.path.join(CORPUS, name), "w") as file:
            file.write(json.dumps(config) + "\n")
            for part, tensor in tensors.items():
                file.write(" ".join(["." + part, NAMES[tensor.dtype], *map(str, tensor.shape)]) + "\n")
        print(f"{name}: {expected.dtype}, {reference}", file=sys.stderr)


if __name__ == "__main__":
    main()
