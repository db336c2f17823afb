# SPDX-License-Identifier: Apache-2.0
"""A causal language model with linear residual adapters, as `shiftrt export --format hf-lra` writes it.

    AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)

The model is the base family's own class (LlamaForCausalLM, ...). It differs in two things. Adapters, which stand where
blocks were removed, run before or after the block of a layer: an adapter adds an affine map of the hidden states, or of
their norm, to the hidden states. And a block may lack its attention or its MLP, or have an MLP of another width.
"""
import copy
import functools
import inspect

import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel

from .configuration_shiftrt import FAMILIES, ShiftrtConfig


class LowRankAdapter(nn.Module):
    """h + up(down(norm(h))), or without the norm; h has the shape (..., hidden)."""

    def __init__(self, hidden, rank, norm=None):
        super().__init__()
        self.norm = norm
        self.down = nn.Linear(hidden, rank, bias=False)
        self.up = nn.Linear(rank, hidden)

    def forward(self, hidden_states):
        return hidden_states + self.up(self.down(hidden_states if self.norm is None else self.norm(hidden_states)))


class FullAdapter(nn.Module):
    """h + linear(norm(h)), or without the norm; h has the shape (..., hidden)."""

    def __init__(self, hidden, norm=None):
        super().__init__()
        self.norm = norm
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, hidden_states):
        return hidden_states + self.linear(hidden_states if self.norm is None else self.norm(hidden_states))


def make_adapters(config, layer, where, norm):
    """`norm`: a norm such as those of the adapters, which get copies of it."""
    def make(adapter):
        own = copy.deepcopy(norm) if adapter.get("norm") else None
        if getattr(own, "bias", None) is not None:  # an adapter's norm has a gain alone
            own.bias = None
        if adapter["kind"] == "full":
            return FullAdapter(config.hidden_size, own)
        return LowRankAdapter(config.hidden_size, adapter["rank"], own)

    return nn.Sequential(*map(make, config.adapters(layer, where)))


class NoAttention(nn.Module):
    """Stands where a block has no attention, and adds nothing to the hidden states. Caches ask their first layer how many
    tokens they hold, so this one stores a zero for every token. Its layer passes the cache as `cache` since transformers
    5.24, and before as `past_key_values` or `past_key_value`."""

    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden_states, *args, cache=None, past_key_values=None, past_key_value=None, cache_position=None,
                **kwargs):
        cache = next((c for c in (cache, past_key_values, past_key_value) if c is not None), None)
        if cache is not None:
            token = hidden_states.new_zeros(hidden_states.shape[0], 1, hidden_states.shape[1], 1)
            position = () if cache_position is None else ({"cache_position": cache_position},)
            cache.update(token, token, self.layer_idx, *position)
        return torch.zeros_like(hidden_states), None


class NoLinearAttention(nn.Module):
    """Stands where a block has no gated delta network or short convolution, and adds nothing to the hidden states."""

    def forward(self, hidden_states, *args, **kwargs):
        return torch.zeros_like(hidden_states)


class NoMlp(nn.Module):
    """Stands where a block has no MLP, and adds nothing to the hidden states."""

    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


def mlp_of(layer):
    """The name of a layer's MLP."""
    return "mlp" if hasattr(layer, "mlp") else "feed_forward"


def of_width(mlp, config, units):
    """An MLP of another width."""
    config = copy.copy(config)
    config.intermediate_size = units
    config.block_auto_adjust_ff_dim = False  # LFM2 would take two thirds
    takes_width = "intermediate_size" in inspect.signature(type(mlp).__init__).parameters
    return type(mlp)(config, units) if takes_width else type(mlp)(config)


def leave_one_half(layer, runs, layer_idx):
    """Takes the attention or the MLP out of a layer, with its norms. `runs` names the half that stays."""
    # With a norm after each half, post_attention_layernorm belongs to the attention, unless that has another name.
    after = hasattr(layer, "post_feedforward_layernorm")
    of_attention = {"input_layernorm", "post_self_attn_layernorm", "post_norm1", "attention_layernorm", "operator_norm",
                    *(["post_attention_layernorm"] if after else [])}
    mixer = next((name for name in ("linear_attn", "conv") if hasattr(layer, name)), None)
    if runs == "mlp" and mixer:
        setattr(layer, mixer, NoLinearAttention())
    elif runs == "mlp":
        layer.self_attn = NoAttention(layer_idx)
    else:
        setattr(layer, mlp_of(layer), NoMlp())
    norms = [name for name, _ in layer.named_children() if "norm" in name]
    for name in norms:
        # In a parallel block, both halves read the one norm.
        if len(norms) > 1 and (name in of_attention) == (runs == "mlp"):
            setattr(layer, name, nn.Identity())


@functools.cache
def adapted_layer(layer_class):
    """The family's decoder layer with adapters. They are inside it, so that a device map, gradient checkpointing and the
    recording of hidden states treat block and adapters as one layer."""

    class AdaptedLayer(layer_class):
        def __init__(self, config, layer_idx):
            super().__init__(config, layer_idx)
            norm = next(child for name, child in self.named_children() if "norm" in name)
            self.adapters_before = make_adapters(config, layer_idx, "before", norm)
            self.adapters_after = make_adapters(config, layer_idx, "after", norm)

        def forward(self, hidden_states, *args, **kwargs):
            output = super().forward(self.adapters_before(hidden_states), *args, **kwargs)
            if isinstance(output, tuple):  # with the hidden states first, in older versions of transformers 4
                return (self.adapters_after(output[0]), *output[1:])
            return self.adapters_after(output)

    AdaptedLayer.__name__ = layer_class.__name__  # _no_split_modules refers to layers by this name
    return AdaptedLayer


@functools.cache
def adapted_model(cls, family):
    """The subclass of `cls` and of the family's model. It keeps the name, which save_pretrained writes to config.json."""
    base = getattr(transformers, FAMILIES[family])
    if issubclass(cls, base):
        return cls
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "config_class": ShiftrtConfig})


class ShiftrtForCausalLM(PreTrainedModel, GenerationMixin):
    """Constructing one gives an instance of a subclass that also derives from the class of config's family."""

    config_class = ShiftrtConfig

    def __new__(cls, config=None, *args, **kwargs):
        # Copying an instance calls this without a configuration, on the subclass.
        return super().__new__(cls if config is None else adapted_model(cls, config.shiftrt["base_model_type"]))

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        layers = self.model.layers
        for index in sorted({adapter["layer"] for adapter in config.shiftrt["adapters"]}):
            layers[index] = adapted_layer(type(layers[index]))(config, index)
        for index, units in config.mlp_units().items():
            name = mlp_of(layers[index])
            setattr(layers[index], name, of_width(getattr(layers[index], name), config, units))
        for index, runs in config.half_blocks().items():
            leave_one_half(layers[index], runs, index)
        self.post_init()
