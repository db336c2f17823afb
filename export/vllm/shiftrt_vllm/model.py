# SPDX-License-Identifier: Apache-2.0
"""The family's model of vLLM with adapters before and after its decoder layers, of which some have an attention or an MLP
alone."""
import copy

from torch import nn
from vllm.model_executor.models.gemma2 import Gemma2ForCausalLM
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM


class LowRankUpdate(nn.Module):
    """up(down(norm(h))), or without the norm, of shape (tokens, hidden). Weights are not split: with tensor parallelism every rank has all of h."""

    def __init__(self, hidden, rank, norm=None):
        super().__init__()
        self.norm = norm
        self.down = nn.Linear(hidden, rank, bias=False)
        self.up = nn.Linear(rank, hidden)

    def forward(self, h):
        return self.up(self.down(h if self.norm is None else self.norm(h)))


class FullUpdate(nn.Module):
    """linear(norm(h)), or without the norm, of shape (tokens, hidden)."""

    def __init__(self, hidden, norm=None):
        super().__init__()
        self.norm = norm
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, h):
        return self.linear(h if self.norm is None else self.norm(h))


def updates(config, layer, where, norm):
    """`norm`: a norm such as those of the adapters, which get copies of it."""
    def make(adapter):
        own = copy.deepcopy(norm) if adapter.get("norm") else None
        if adapter["kind"] == "full":
            return FullUpdate(config.hidden_size, own)
        return LowRankUpdate(config.hidden_size, adapter["rank"], own)

    return nn.ModuleList(map(make, config.adapters(layer, where)))


def add_updates(adapters, hidden_states, residual):
    """vLLM hands on the residual stream as two summands, whose sum the norm of the next layer computes. The adapters act
    on the sum, and what they add goes to the first summand. `residual` is None before the first layer."""
    for adapter in adapters:
        hidden_states = hidden_states + adapter(hidden_states if residual is None else hidden_states + residual)
    return hidden_states


class HalfLayer(nn.Module):
    """The attention or the MLP of a decoder layer, alone with its norms. It takes over the layer's children, so that their
    tensors keep the names of the checkpoint."""

    def __init__(self, layer, runs):
        super().__init__()
        # Gemma 2 has a norm behind each half too, and its post_attention_layernorm belongs to the attention.
        around = hasattr(layer, "pre_feedforward_layernorm")
        attention = ["input_layernorm", "self_attn", *(["post_attention_layernorm"] if around else [])]
        mlp = ["pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"] if around else ["post_attention_layernorm", "mlp"]
        self.names, self.attends = (attention, True) if runs == "attention" else (mlp, False)
        for name in self.names:
            setattr(self, name, getattr(layer, name))

    def forward(self, positions, hidden_states, residual, **kwargs):
        norm, half, *behind = (getattr(self, name) for name in self.names)
        if residual is None:
            hidden_states, residual = norm(hidden_states), hidden_states
        else:
            hidden_states, residual = norm(hidden_states, residual)
        hidden_states = half(positions=positions, hidden_states=hidden_states) if self.attends else half(hidden_states)
        return behind[0](hidden_states) if behind else hidden_states, residual


def run_before(layer, args):
    positions, hidden_states, residual = args
    return positions, add_updates(layer.adapters_before, hidden_states, residual), residual


def run_after(layer, args, output):
    hidden_states, residual = output
    return add_updates(layer.adapters_after, hidden_states, residual), residual


class Adapted:
    """The adapters are children of the layers, so that their tensors have the names of the checkpoint."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        if config.shiftrt.get("mlp_units"):
            raise ValueError("config.json: the MLPs have several widths (shiftrt.mlp_units), which the vLLM plugin does not run; "
                             "transformers does, and `shiftrt export --format hf` writes a model that vLLM runs.")
        with_adapters = {adapter["layer"] for adapter in config.shiftrt["adapters"]}
        # Other pipeline ranks have the other layers.
        here = set(range(self.model.start_layer, self.model.end_layer))
        halves = config.half_blocks() if hasattr(config, "half_blocks") else {}  # exports of format 1 have none
        for index in here & set(halves):
            layer, runs = self.model.layers[index], halves[index]
            if runs == "mlp":  # vLLM would keep keys and values for every attention that is registered
                del vllm_config.compilation_config.static_forward_context[layer.self_attn.attn.layer_name]
            self.model.layers[index] = HalfLayer(layer, runs)
        for index in with_adapters & here:
            layer = self.model.layers[index]
            norm = next(child for name, child in layer.named_children() if "norm" in name)
            layer.adapters_before = updates(config, index, "before", norm)
            layer.adapters_after = updates(config, index, "after", norm)
            layer.register_forward_pre_hook(run_before)
            layer.register_forward_hook(run_after)


class AdaptedLlama(Adapted, LlamaForCausalLM):
    pass


class AdaptedMistral(Adapted, MistralForCausalLM):
    pass


class AdaptedQwen2(Adapted, Qwen2ForCausalLM):
    pass


class AdaptedQwen3(Adapted, Qwen3ForCausalLM):
    pass


class AdaptedGemma2(Adapted, Gemma2ForCausalLM):
    pass


FAMILIES = {"llama": AdaptedLlama, "mistral": AdaptedMistral, "qwen2": AdaptedQwen2, "qwen3": AdaptedQwen3,
            "gemma2": AdaptedGemma2}


class ShiftrtForCausalLM(AdaptedLlama):
    """The architecture in config.json. vLLM asks this class what it supports, which is the same for all families, and
    constructs it, which gives the model of the checkpoint's family."""

    def __new__(cls, *, vllm_config, prefix=""):
        family = vllm_config.model_config.hf_config.shiftrt["base_model_type"]
        if family not in FAMILIES:
            raise ValueError(f"config.json: shiftrt.base_model_type is {family!r}; the vLLM plugin has {', '.join(FAMILIES)}. "
                             "transformers runs this model.")
        return FAMILIES[family](vllm_config=vllm_config, prefix=prefix)
