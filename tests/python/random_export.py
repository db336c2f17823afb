# SPDX-License-Identifier: Apache-2.0
"""Random models with adapters and half blocks in a directory such as `shiftrt export --format hf-lra` writes, each with an
oracle: the family's stock model with all halves, where hooks apply the formula of the adapters between its layers, and set to
zero what a half that is left out would add."""
import copy
import json
import shutil
from pathlib import Path

import safetensors.torch
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

FILES = Path(__file__).parents[2] / "export" / "hf_lra"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                 "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM", "gemma2": "Gemma2ForCausalLM",
                 "gemma3_text": "Gemma3ForCausalLM", "ministral3": "Ministral3ForCausalLM", "smollm3": "SmolLM3ForCausalLM",
                 "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM", "granite": "GraniteForCausalLM",
                 "glm4": "Glm4ForCausalLM", "seed_oss": "SeedOssForCausalLM", "exaone4": "Exaone4ForCausalLM",
                 "ernie4_5": "Ernie4_5ForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
                 "gemma": "GemmaForCausalLM", "vaultgemma": "VaultGemmaForCausalLM", "ministral": "MinistralForCausalLM",
                 "hyperclovax": "HyperCLOVAXForCausalLM", "arcee": "ArceeForCausalLM", "jais2": "Jais2ForCausalLM",
                 "cwm": "CwmForCausalLM", "nemotron": "NemotronForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
                 "qwen3_5_text": "Qwen3_5ForCausalLM", "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
                 "apertus": "ApertusForCausalLM", "lfm2": "Lfm2ForCausalLM"}
ARCHITECTURES = {family: name for family, name in ARCHITECTURES.items() if family in CONFIG_MAPPING}
NORMS_AFTER = ("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4")
HIDDEN, LAYERS, VOCABULARY = 64, 4, 199
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256,
         "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
SPECIAL = {"qwen2": {"tie_word_embeddings": True}, "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 32},
           "mistral": {"sliding_window": 8}, "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 32,
                                                             "sliding_window_pattern": 2},
           "olmo3": {"sliding_window": 8}, "exaone4": {"sliding_window": 8}, "smollm3": {"tie_word_embeddings": True},
           "granite": {"embedding_multiplier": 4.0, "residual_multiplier": 0.5, "logits_scaling": 4.0,
                       "attention_multiplier": 0.1},
           "vaultgemma": {"sliding_window": 8, "query_pre_attn_scalar": 32}, "ministral": {"sliding_window": 8},
           "cwm": {"sliding_window": 8}, "hyperclovax": {"residual_multiplier": 0.5, "logits_scaling": 0.25},
           "qwen3_5_text": {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
                            "linear_num_value_heads": 4,
                            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]},
           "lfm2": {"block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
           "hunyuan_v1_dense": {"rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 1.0}},
           "cohere2": {"sliding_window": 8, "sliding_window_pattern": 2},
           "llama": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 64}, "rope_theta": 500000.0}}
ADAPTERS = [{"layer": 0, "where": "before", "index": 0, "kind": "low-rank", "rank": 4},
            {"layer": 1, "where": "after", "index": 0, "kind": "full", "rank": 0},
            {"layer": 1, "where": "after", "index": 1, "kind": "low-rank", "rank": 8},
            {"layer": 3, "where": "after", "index": 0, "kind": "low-rank", "rank": 8}]
# Without the attention of the first layer, which caches ask for the number of tokens that they hold.
HALF_BLOCKS = [{"layer": 0, "runs": "mlp"}, {"layer": 2, "runs": "attention"}]


def random_adapter(adapter):
    shapes = {"linear.weight": (HIDDEN, HIDDEN), "linear.bias": (HIDDEN,)}
    if adapter["kind"] == "low-rank":
        shapes = {"down.weight": (adapter["rank"], HIDDEN), "up.weight": (HIDDEN, adapter["rank"]), "up.bias": (HIDDEN,)}
    tensors = {name: torch.randn(shape) / 8 for name, shape in shapes.items()}
    return tensors | ({"norm.weight": 1 + torch.randn(HIDDEN) / 8} if adapter.get("norm") else {})


def apply(tensors, stream, norm=None):
    h = stream.float()
    x = h if norm is None else norm(h)
    if "linear.weight" in tensors:
        update = x @ tensors["linear.weight"].T + tensors["linear.bias"]
    else:
        update = x @ tensors["down.weight"].T @ tensors["up.weight"].T + tensors["up.bias"]
    return (h + update).to(stream.dtype)


def norm_of(layer, values):
    """The norm of an adapter, which is of the kind that the layer has; or none."""
    if "norm.weight" not in values:
        return None
    norm = copy.deepcopy(next(child for name, child in layer.named_children() if "norm" in name))
    norm.weight.data = values["norm.weight"].clone()
    return norm


def half_of(tensor, family):
    """Which half of a block reads a tensor: "attention" or "mlp"."""
    if family in NORMS_AFTER:  # post_attention_layernorm is after the attention
        return "mlp" if "mlp." in tensor or "feedforward" in tensor else "attention"
    if "post_norm" in tensor:
        return "attention" if "post_norm1" in tensor else "mlp"
    if family in ("cohere", "cohere2") and "layernorm" in tensor:  # both halves read its one norm
        return "both"
    of_mlp = ("mlp", "post_attention_layernorm", "feedforward", "feed_forward", "ffn_norm")
    return "mlp" if any(part in tensor for part in of_mlp) else "attention"


def without_update(layer, runs, family):
    """Sets to zero what the other half of a stock layer adds to the hidden states."""
    def zero(_, args, output):
        return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)
    parts = dict(layer.named_children())
    mixer = next(parts[name] for name in ("linear_attn", "conv", "self_attn") if name in parts)
    after = {"mlp": mixer, "attention": parts["mlp"] if "mlp" in parts else parts["feed_forward"]}
    if family in NORMS_AFTER:
        after = {"mlp": layer.post_attention_layernorm, "attention": layer.post_feedforward_layernorm}
    elif family == "glm4":
        after = {"mlp": layer.post_self_attn_layernorm, "attention": layer.post_mlp_layernorm}
    elif family == "hyperclovax":
        after = {"mlp": layer.post_norm1, "attention": layer.post_norm2}
    after[runs].register_forward_hook(zero)


class RandomExport:
    """A directory as the program writes it, and the oracle."""

    def __init__(self, directory, family, half_blocks=(), norms=False):
        self.directory, self.family, self.half_blocks = directory, family, list(half_blocks)
        torch.manual_seed(7)
        entries = {**SHAPE, **SPECIAL.get(family, {})}
        if family in ("phi3", "olmo2", "olmo3", "granite", "starcoder2"):
            del entries["head_dim"]  # these have none
        # The other implementations of transformers leave out the soft cap of the attention of Gemma 2 and VaultGemma.
        self.options = {"attn_implementation": "eager"} if family in ("gemma2", "vaultgemma") else {}
        stock = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **entries), **self.options).eval()
        assert type(stock).__name__ == ARCHITECTURES[family]
        adapters = [(adapter | ({"norm": True} if norms and adapter["index"] == 0 else {})) for adapter in ADAPTERS]
        adapters = [(adapter, random_adapter(adapter)) for adapter in adapters]
        config = json.loads(stock.config.to_json_string())
        config |= {"model_type": "shiftrt", "architectures": ["ShiftrtForCausalLM"],
                   "auto_map": {"AutoConfig": "configuration_shiftrt.ShiftrtConfig",
                                "AutoModelForCausalLM": "modeling_shiftrt.ShiftrtForCausalLM"},
                   "shiftrt": {"format": 1, "base_model_type": family, "base_architecture": ARCHITECTURES[family],
                               "adapters": [adapter for adapter, _ in adapters]}}
        if half_blocks:
            config["shiftrt"] |= {"format": 2, "half_blocks": self.half_blocks}
        if norms:
            config["shiftrt"]["format"] = 3
        (directory / "config.json").write_text(json.dumps(config))
        tensors = {k: v for k, v in stock.state_dict().items() if k != "lm_head.weight" or not stock.config.tie_word_embeddings}
        for block in self.half_blocks:
            place = f"model.layers.{block['layer']}."
            tensors = {k: v for k, v in tensors.items()
                       if not k.startswith(place) or half_of(k[len(place):], family) in (block["runs"], "both")}
        for adapter, values in adapters:
            place = f"model.layers.{adapter['layer']}.adapters_{adapter['where']}.{adapter['index']}"
            tensors |= {f"{place}.{name}": value for name, value in values.items()}
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, directory / "model.safetensors",
                                    metadata={"format": "pt"})
        for name in ("configuration_shiftrt.py", "modeling_shiftrt.py"):
            shutil.copy(FILES / name, directory)
        for adapter, values in adapters:
            layer = stock.model.layers[adapter["layer"]]
            norm = norm_of(layer, values)
            if adapter["where"] == "before":
                layer.register_forward_pre_hook(lambda _, args, v=values, n=norm: (apply(v, args[0], n), *args[1:]))
            else:
                layer.register_forward_hook(lambda _, args, out, v=values, n=norm: (apply(v, out[0], n), *out[1:])
                                            if isinstance(out, tuple) else apply(v, out, n))
        for block in self.half_blocks:
            without_update(stock.model.layers[block["layer"]], block["runs"], family)
        self.oracle = stock

    def load(self, **kwargs):
        return AutoModelForCausalLM.from_pretrained(self.directory, trust_remote_code=True, **self.options, **kwargs).eval()
