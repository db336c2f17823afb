#!/usr/bin/env python3
"""Makes rope.json: the inverse frequencies and cos/sin factors that transformers computes for each type of RoPE.

Needs the packages torch and transformers. Usage: make_rope.py
"""
import json
import os

import numpy
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

SHAPE = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4,
             vocab_size=100)


def case(head_dim, positions, **rope):
    return dict(SHAPE, head_dim=head_dim, max_position_embeddings=positions, rope_parameters=rope)


CASES = {
    "default": case(16, 2048, rope_type="default", rope_theta=10000.0),
    "uncommon head_dim": case(20, 2048, rope_type="default", rope_theta=1e6),
    "linear": case(16, 4096, rope_type="linear", rope_theta=10000.0, factor=2.5),
    "llama3": case(64, 131072, rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=8192),
    "yarn": case(64, 131072, rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768),
    "yarn, mscale": case(32, 16384, rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=24.0, beta_slow=2.0,
                         original_max_position_embeddings=2048, mscale=0.7, mscale_all_dim=1.3, truncate=False),
    "yarn, attention_factor": case(16, 4096, rope_type="yarn", rope_theta=10000.0, factor=2.0, attention_factor=0.83,
                                   original_max_position_embeddings=2048),
    "yarn, empty ramp": case(16, 64, rope_type="yarn", rope_theta=10000.0, factor=2.0,
                             original_max_position_embeddings=4),
}


def main():
    goldens = []
    for name, config in CASES.items():
        text = dict(config, architectures=["LlamaForCausalLM"], rope_parameters=dict(config["rope_parameters"]))
        rope = LlamaRotaryEmbedding(LlamaConfig(**config))
        inverse = [float(numpy.format_float_positional(x, unique=True)) for x in rope.inv_freq.numpy()]
        goldens.append(dict(name=name, config=text, scale=rope.attention_scaling, inverse=inverse))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope.json"), "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(golden) for golden in goldens) + "\n]\n")


if __name__ == "__main__":
    main()
