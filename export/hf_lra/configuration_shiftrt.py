# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model with linear residual adapters, as `shiftrt export --format hf-lra` writes it.

It is the configuration of the base family (Llama, Qwen, ...) with one more entry, `shiftrt`: the format of that entry,
the family, the list of adapters, the blocks of which only the attention or only the MLP runs, and the widths of MLPs.
"""
from transformers import CONFIG_MAPPING, PretrainedConfig

FORMATS = (1, 2, 3)  # format 2 added half blocks; 3 norms of adapters, and MLPs of several widths

# Model type of the family -> its class in transformers. The list is what the exports were tested with.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "vaultgemma": "VaultGemmaForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "cwm": "CwmForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
}


class ShiftrtConfig(PretrainedConfig):
    """`shiftrt` is a dict: `format`, `base_model_type`, `base_architecture`, and `adapters`, a list of
    {"layer": k, "where": "after" | "before", "index": j, "kind": "low-rank" | "full", "rank": r}. Format 2 also has
    `half_blocks`, a list of {"layer": k, "runs": "attention" | "mlp"}. In format 3 an adapter may have `"norm": true`, and
    `mlp_units` is a list with the width of each layer's MLP.

    All other arguments are those of the family's configuration class, whose defaults and conversions apply.
    """

    model_type = "shiftrt"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, shiftrt=None, **kwargs):
        # transformers builds a configuration without arguments when it looks for defaults.
        shiftrt = shiftrt or {"format": 1, "base_model_type": "llama", "adapters": []}
        kwargs.pop("model_type", None)
        family = CONFIG_MAPPING[check_family(shiftrt)](**kwargs)
        self.__dict__.update(family.__dict__)
        for check in (check_adapters, check_half_blocks, check_mlp_units):
            check(shiftrt, self.num_hidden_layers)
        self.shiftrt = shiftrt

    def to_diff_dict(self):
        """The contents of config.json: the entries in which the family's own configuration differs from its defaults."""
        family = CONFIG_MAPPING[self.shiftrt["base_model_type"]]
        entries = {key: value for key, value in self.to_dict().items() if key != "model_type"}
        return {**family(**entries).to_diff_dict(), "model_type": self.model_type}

    def adapters(self, layer, where):
        """The adapters of one layer, in the order in which they run; `where` is "before" or "after"."""
        chosen = [a for a in self.shiftrt["adapters"] if (a["layer"], a["where"]) == (layer, where)]
        return sorted(chosen, key=lambda a: a["index"])

    def half_blocks(self):
        """The layers of which one half runs alone, each with that half: "attention" or "mlp"."""
        return {block["layer"]: block["runs"] for block in self.shiftrt.get("half_blocks", [])}

    def mlp_units(self):
        """The layers whose MLP has another width than intermediate_size, each with that width."""
        units = self.shiftrt.get("mlp_units", [])
        return {layer: width for layer, width in enumerate(units) if width not in (0, self.intermediate_size)}


def check_family(shiftrt):
    if shiftrt.get("format") not in FORMATS:
        raise ValueError(f"config.json: shiftrt.format is {shiftrt.get('format')!r}, but these files read formats 1 to 3. "
                         "Take configuration_shiftrt.py and modeling_shiftrt.py from the version of shiftrt that wrote the model.")
    family = shiftrt.get("base_model_type")
    if family not in FAMILIES:
        raise ValueError(f"config.json: shiftrt.base_model_type is {family!r}; known are {', '.join(FAMILIES)}.")
    architecture = shiftrt.get("base_architecture", FAMILIES[family])
    if architecture != FAMILIES[family]:
        raise ValueError(f"config.json: shiftrt.base_architecture is {architecture!r}; that of {family} is {FAMILIES[family]}.")
    return family


def check_adapters(shiftrt, layers):
    seen = {}
    for adapter in shiftrt.get("adapters", []):
        layer, where, index = adapter.get("layer"), adapter.get("where"), adapter.get("index")
        kind, rank = adapter.get("kind"), adapter.get("rank")
        place = f"config.json: the adapter {adapter}"
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise ValueError(f"{place} is at layer {layer!r}, but the model has layers 0 to {layers - 1}.")
        if where not in ("before", "after"):
            raise ValueError(f"{place} has where = {where!r}; known are 'before' and 'after'.")
        if kind not in ("low-rank", "full"):
            raise ValueError(f"{place} has kind = {kind!r}; known are 'low-rank' and 'full'.")
        if kind == "low-rank" and not (isinstance(rank, int) and rank > 0):
            raise ValueError(f"{place} has rank = {rank!r}; a low-rank adapter needs a positive one.")
        if not isinstance(adapter.get("norm", False), bool) or (adapter.get("norm") and shiftrt["format"] < 3):
            raise ValueError(f"{place} has norm = {adapter['norm']!r}; known are false and, since format 3, true.")
        seen.setdefault((layer, where), []).append(index)
    for (layer, where), indices in seen.items():
        if sorted(indices) != list(range(len(indices))):
            raise ValueError(f"config.json: the adapters {where} layer {layer} have the indices {indices}, not 0, 1, ...")


def check_half_blocks(shiftrt, layers):
    seen = set()
    for block in shiftrt.get("half_blocks", []):
        layer, runs = block.get("layer"), block.get("runs")
        place = f"config.json: the half block {block}"
        if shiftrt["format"] < 2:
            raise ValueError(f"{place} cannot be in format 1.")
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise ValueError(f"{place} is layer {layer!r}, but the model has layers 0 to {layers - 1}.")
        if runs not in ("attention", "mlp"):
            raise ValueError(f"{place} has runs = {runs!r}; known are 'attention' and 'mlp'.")
        if layer in seen:
            raise ValueError(f"{place} is listed twice.")
        seen.add(layer)


def check_mlp_units(shiftrt, layers):
    units = shiftrt.get("mlp_units", [])
    if units and (shiftrt["format"] < 3 or len(units) != layers or not all(isinstance(u, int) and u >= 0 for u in units)):
        raise ValueError(f"config.json: mlp_units is {units}, expected in format 3 the widths of the MLPs of {layers} layers.")
