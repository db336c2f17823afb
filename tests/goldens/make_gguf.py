#!/usr/bin/env python3
"""Makes the files under gguf/ with the package gguf.

blocks.gguf: for every type of block that is read, a tensor of random blocks and the float32 numbers that the package makes
of it. sentencepiece.gguf: the pieces of tokenizers/sentencepiece/tokenizer.model, as llama.cpp's converter takes them out.
Small whole models go to ../fuzz/corpus/gguf/.

Needs the packages gguf, numpy and sentencepiece. Usage: make_gguf.py
"""
import os

import gguf
import numpy
import sentencepiece
from gguf import GGMLQuantizationType as Type

TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.Q4_K,
         Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4]
ROWS, COLUMNS = 3, 512
GOLDENS = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(GOLDENS, "gguf")
CORPUS = os.path.join(GOLDENS, "..", "fuzz", "corpus", "gguf")


def random_blocks(kind, random):
    """Random bytes, block by block drawn again until every number is finite."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = ROWS * COLUMNS // elements
    blocks = numpy.zeros((count, size), numpy.uint8)
    wrong = numpy.ones(count, bool)
    while wrong.any():
        blocks[wrong] = random.integers(0, 256, (wrong.sum(), size), numpy.uint8)
        values = gguf.dequantize(blocks.reshape(-1), kind).reshape(count, elements)
        wrong = ~numpy.isfinite(values).all(axis=1)
    return blocks.reshape(ROWS, -1)


def make_blocks():
    random = numpy.random.default_rng(15)
    writer = gguf.GGUFWriter(os.path.join(OUT, "blocks.gguf"), "none")
    writer.add_uint32("test.answer", 42)
    writer.add_float32("test.small", 1e-5)
    writer.add_bool("test.flag", True)
    writer.add_array("test.words", ["one", "", "drei \u00e9"])
    writer.add_array("test.numbers", [-1, 0, 7])
    for kind in TYPES:
        blocks = random_blocks(kind, random)
        values = gguf.dequantize(blocks, kind).reshape(ROWS, COLUMNS).astype(numpy.float32)
        writer.add_tensor(kind.name, blocks, raw_shape=blocks.shape, raw_dtype=kind)
        if kind != Type.F32:
            writer.add_tensor(kind.name + ".float32", values)
    # Values for tensors in blocks, with halves to round and blocks of zeros and of numbers that are nearly zero.
    values = random.standard_normal((ROWS, COLUMNS)).astype(numpy.float32)
    values[0, :32] = 0
    values[0, 32:64] *= 1e-30
    values[1, :128] = numpy.arange(-64, 64) / 2
    writer.add_tensor("quantize.float32", values)
    writer.add_tensor("quantize.Q8_0", gguf.quantize(values, Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.add_tensor("quantize.BF16", gguf.quantize(values, Type.BF16), raw_dtype=Type.BF16)
    write(writer)


def make_sentencepiece():
    model = sentencepiece.SentencePieceProcessor(os.path.join(GOLDENS, "tokenizers", "sentencepiece", "tokenizer.model"))
    writer = gguf.GGUFWriter(os.path.join(OUT, "sentencepiece.gguf"), "llama")
    size = model.get_piece_size()
    types = [gguf.TokenType.NORMAL] * size
    for i in range(size):
        if model.is_unknown(i):
            types[i] = gguf.TokenType.UNKNOWN
        elif model.is_control(i):
            types[i] = gguf.TokenType.CONTROL
        elif model.is_unused(i):
            types[i] = gguf.TokenType.UNUSED
        elif model.is_byte(i):
            types[i] = gguf.TokenType.BYTE
        elif model.id_to_piece(i) == "<extra>":
            types[i] = gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([model.id_to_piece(i).encode() for i in range(size)])
    writer.add_token_scores([model.get_score(i) for i in range(size)])
    writer.add_token_types(types)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    write(writer)


def make_model(architecture, pre, kind):
    """A model of one block with hidden size 32 and one head of size 2; its tokenizer has the letters of a few words. The file
    has less than 4 KiB, the size up to which libFuzzer makes inputs of its own accord."""
    random = numpy.random.default_rng(16)
    writer = gguf.GGUFWriter(os.path.join(CORPUS, architecture), architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(2)
    writer.add_value_length(2)
    writer.add_rope_dimension_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    tokens = ["<|end|>", *"aehint", "in", "th", "the"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["i n", "t h", "th e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")

    def add(name, *shape):
        values = random.standard_normal(shape).astype(numpy.float32)
        if len(shape) == 2 and shape[1] == 32:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values.astype(numpy.float16 if len(shape) == 2 else numpy.float32))

    add("token_embd.weight", len(tokens), 32)
    for name, *shape in [("attn_norm", 32), ("attn_q", 2, 32), ("attn_k", 2, 32), ("attn_v", 2, 32), ("attn_output", 32, 2),
                         ("ffn_norm", 32), ("ffn_gate", 2, 32), ("ffn_up", 2, 32), ("ffn_down", 32, 2)]:
        add(f"blk.0.{name}.weight", *shape)
    if architecture == "qwen2":
        for name in ["attn_q", "attn_k", "attn_v"]:
            add(f"blk.0.{name}.bias", 2)
    add("output_norm.weight", 32)
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    os.makedirs(OUT, exist_ok=True)
    make_blocks()
    make_sentencepiece()
    os.makedirs(CORPUS, exist_ok=True)
    make_model("llama", "llama-bpe", Type.Q8_0)
    make_model("qwen2", "qwen2", Type.Q5_1)


if __name__ == "__main__":
    main()
