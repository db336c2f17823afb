#!/usr/bin/env python3
"""Makes tests/goldens/gradients: loss and gradients of tiny random models, by PyTorch's autograd in float64.

    pip install torch==2.15.0 transformers==5.23.0 safetensors numpy   # "qwen3_5", "qwen2_moe" and later ones: transformers==5.24.0
    python3 make_gradients.py gradients [NAME...]

The weights are those of make_models.py (seed 1). A low-rank adapter stands after block 0 and a full one after block 1,
each projection has a low-rank change (LoRA), and the head is one of its own where the model ties it. Each model NAME has
NAME/config.json and NAME/golden.safetensors with

    tokens, lengths, weights   the packed sequences, and how much each token counts as a target
    settings                   LoRA's scale, and the weights of cross entropy and of the divergence from the teacher,
                               which is the model without adapters and low-rank changes
    loss                       the weighted sum over the targets
    value.X                    adapters and factors: adapter.0.p, lora.0.self_attn.q_proj.weight.a
    gradient.X                 the gradient of the loss divided by the sum of the weights: of these, and of every tensor
                               but the embeddings by its name in the checkpoint
    error.X                    the distance of PyTorch's gradient in float32 from that in float64, divided by its norm
"""
import json
import sys
from pathlib import Path

import torch
from make_models import (APERTUS, COHERE2, ERNIE, EXAONE4, GEMMA2, GEMMA3, GPT_OSS, GRANITE, HUNYUAN, LFM2, LLAMA, MINISTRAL3, NEMOTRON, OLMO2, OLMO3, QWEN2,
                         QWEN2_MOE, QWEN3, QWEN3_MOE, QWEN35, SEED_OSS, SHARED, SMOLLM3, STARCODER2, random_state, random_tensor)
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

BASE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 37, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32"}
SHORT = {"num_hidden_layers": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1}
CONFIGS = {  # and the weights of cross entropy and divergence
    "llama": ({**LLAMA}, 1.0, 0.0),
    "qwen2": ({**QWEN2, "tie_word_embeddings": True}, 1.0, 0.0),
    "qwen3": ({**QWEN3, **SHORT}, 0.25, 0.75),
    "qwen3_5": ({**QWEN35, **SHORT, "num_key_value_heads": 1, "attention_bias": True, "linear_key_head_dim": 6,
                 "linear_value_head_dim": 5, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
                 "layer_types": ["linear_attention", "full_attention"],
                 "rope_parameters": {**QWEN35["rope_parameters"], "partial_rotary_factor": 0.5}}, 0.5, 0.5),
    "qwen3_5_moe": ({**QWEN35, **SHORT, **SHARED, "architectures": ["Qwen3_5MoeForCausalLM"],
                     "model_type": "qwen3_5_moe_text", "intermediate_size": None, "num_key_value_heads": 1,
                     "linear_key_head_dim": 4, "linear_value_head_dim": 5, "linear_num_key_heads": 1,
                     "linear_num_value_heads": 2, "num_experts": 3, "moe_intermediate_size": 10,
                     "shared_expert_intermediate_size": 14, "layer_types": ["full_attention", "linear_attention"],
                     "rope_parameters": {**QWEN35["rope_parameters"], "partial_rotary_factor": 0.5}}, 0.5, 0.5),
    "nemotron": ({**NEMOTRON, "num_key_value_heads": 1, "intermediate_size": 24}, 1.0, 0.0),
    "cohere2": ({**COHERE2, "num_key_value_heads": 1, "num_hidden_layers": 2, "sliding_window": 4,
                 "sliding_window_pattern": 2}, 0.5, 0.5),
    "starcoder2": ({**STARCODER2, "num_key_value_heads": 1, "intermediate_size": 24, "sliding_window": 4}, 1.0, 0.0),
    "gemma2": ({**GEMMA2, **SHORT, "num_key_value_heads": 1, "sliding_window": 4}, 0.5, 0.5),
    "gemma3": ({**GEMMA3, **SHORT, "num_key_value_heads": 1, "sliding_window": 4, "sliding_window_pattern": 2}, 1.0, 0.0),
    "ministral3": ({**MINISTRAL3, **SHORT, "num_key_value_heads": 1, "pad_token_id": 0}, 1.0, 0.0),
    "olmo2": ({**OLMO2, "num_key_value_heads": 1}, 1.0, 0.0),
    "olmo3": ({**OLMO3, "num_key_value_heads": 1, "num_hidden_layers": 2, "sliding_window": 4,
               "layer_types": ["sliding_attention", "full_attention"]}, 0.5, 0.5),
    "smollm3": ({**SMOLLM3, "num_key_value_heads": 1}, 1.0, 0.0),
    "granite": ({**GRANITE, "num_key_value_heads": 1}, 0.5, 0.5),
    "seed_oss": ({**SEED_OSS, **SHORT, "num_key_value_heads": 1}, 1.0, 0.0),
    "exaone4": ({**EXAONE4, **SHORT, "num_key_value_heads": 1, "sliding_window": 4, "sliding_window_pattern": 2}, 1.0, 0.0),
    "ernie4_5": ({**ERNIE, **SHORT, "num_key_value_heads": 1, "use_bias": True}, 1.0, 0.0),
    "qwen3_moe": ({**QWEN3_MOE, **SHORT, **EXPERTS, "moe_intermediate_size": 12}, 0.5, 0.5),
    "qwen2_moe": ({**QWEN2_MOE, **EXPERTS, "num_hidden_layers": 2, "moe_intermediate_size": 12,
                   "shared_expert_intermediate_size": 20, "mlp_only_layers": [0]}, 1.0, 0.0),
    "gpt_oss": ({**GPT_OSS, **SHORT, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
                 "intermediate_size": 12, "sliding_window": 4}, 0.5, 0.5),
    "apertus": ({**APERTUS, "num_key_value_heads": 1, "intermediate_size": 24}, 0.5, 0.5),
    "lfm2": ({**LFM2, "num_key_value_heads": 1, "num_hidden_layers": 2, "block_ff_dim": 36, "block_multiple_of": 8,
              "full_attn_idxs": [1]}, 0.5, 0.5),
    "hunyuan": ({**HUNYUAN, **SHORT, "num_key_value_heads": 1}, 0.5, 0.5),
    "olmoe": ({**EXPERTS, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "intermediate_size": 12,
               "norm_topk_prob": False, "eos_token_id": 2}, 1.0, 0.0),
}
# Our names, and those that families give them within their module.
PROJECTIONS = {"self_attn.q_proj": ["q_proj"], "self_attn.k_proj": ["k_proj"], "self_attn.v_proj": ["v_proj"],
               "self_attn.o_proj": ["o_proj", "out_proj"], "mlp.gate_proj": ["gate_proj", "w1"],
               "mlp.up_proj": ["up_proj", "c_fc", "w3"], "mlp.down_proj": ["down_proj", "c_proj", "w2"],
               **{f"mlp.shared_expert.{part}_proj": [f"{part}_proj"] for part in ("gate", "up", "down")},
               "mlp.shared_expert_gate": ["shared_expert_gate"],
               "conv.in_proj": ["in_proj"],
               **{f"linear_attn.in_proj_{part}": [f"in_proj_{part}"] for part in ("qkv", "z", "b", "a")}}
LENGTHS = [5, 1, 9, 3]
RANK, SCALE = 2, 1.5


class Adapter(torch.nn.Module):
    def __init__(self, hidden, rank):
        super().__init__()
        if rank:
            self.p = torch.nn.Parameter(torch.randn(hidden, rank) / hidden**0.5)
            self.q = torch.nn.Parameter(torch.randn(rank, hidden) / rank**0.5)
        else:
            self.a = torch.nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5 / 2)
        self.b = torch.nn.Parameter(torch.randn(1, hidden) / 4)

    def forward(self, h):
        return h + (h @ self.p @ self.q if hasattr(self, "p") else h @ self.a) + self.b


class Changed(torch.nn.Module):
    """A projection with a low-rank change."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = torch.nn.Parameter(torch.randn(base.out_features, RANK) / RANK**0.5)

    def forward(self, x):
        return self.base(x) + SCALE * (x @ self.a.T @ self.b.T)


def load(folder, config, dtype):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager",
                                             torch_dtype=torch.float32).eval()
    tied = config.get("tie_embedding", config.get("tie_word_embeddings"))
    state = {k: random_state(k, tuple(v.shape), config["model_type"]) for k, v in model.state_dict().items()
             if not (k == "lm_head.weight" and tied)}
    model.load_state_dict(state, strict=False)
    if tied:
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    model.config.tie_word_embeddings = False
    if "num_experts" in config or "num_local_experts" in config:
        model.set_experts_implementation("eager")  # the others have no float64
    return model.to(dtype)


def changed(model, dtype):
    """Adapters after the blocks and low-rank changes; returns them by their names in the golden."""
    torch.manual_seed(7)
    named = {}
    for i, layer in enumerate(model.model.layers):
        adapter = Adapter(model.config.hidden_size, 0 if i else 3).to(dtype)
        layer.register_forward_hook(lambda m, args, out, adapter=adapter: adapter(out))
        named.update({f"adapter.{i}.{k}": v for k, v in adapter.named_parameters()})
        for part, stored in PROJECTIONS.items():
            mixer = next(name for name in ("linear_attn", "conv", "self_attn") if hasattr(layer, name))
            of_mixer = part.startswith(("self_attn", "linear_attn", "conv"))
            module = mixer if of_mixer else part.rpartition(".")[0] if hasattr(layer, "mlp") else "feed_forward"
            parent = dict(layer.named_modules()).get(module)
            name = next((name for name in stored if hasattr(parent, name)), None)
            if name is None:
                continue
            change = Changed(getattr(parent, name)).to(dtype)
            setattr(parent, name, change)
            named.update({f"lora.{i}.{part}.weight.{k}": getattr(change, k) for k in "ab"})
    return named


def by_checkpoint(tensors, interleaved):
    """The tensors that have all experts of a layer, divided as checkpoints have them, or would have."""
    divided = {}
    for name, tensor in tensors.items():
        stem, experts, matrix = name.rpartition(".experts.")
        if not experts:
            divided[name] = tensor
            continue
        matrix, bias, _ = matrix.partition("_bias")
        names = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
        for expert, of_expert in enumerate(tensor):
            if interleaved:  # as gpt-oss has them, whose matrices are (input, output)
                of_expert = of_expert if bias else of_expert.T
                rows_of = [of_expert[i::len(names)] for i in range(len(names))]
            else:
                rows_of = of_expert.chunk(len(names))
            for part, rows in zip(names, rows_of):
                divided[f"{stem}.experts.{expert}.{part}.{'bias' if bias else 'weight'}"] = rows
    return divided


def gradients(folder, config, cross_entropy, divergence, dtype):
    """The loss and the gradients, in one type throughout; the tokens, their weights, and the adapters and factors."""
    teacher, model = load(folder, config, dtype), load(folder, config, dtype)
    weights_of = {k: v for k, v in model.named_parameters() if k != "model.embed_tokens.weight"}
    named = changed(model, dtype)

    tokens = (torch.arange(sum(LENGTHS)) ** 2 * 7 + 3) % config["vocab_size"]
    weights = torch.tensor([(1.0, 0.0, 0.5)[t * 5 % 3] for t in range(sum(LENGTHS))], dtype=dtype)
    weights[[sum(LENGTHS[:i]) for i in range(len(LENGTHS))]] = 0  # nothing predicts the first token of a sequence
    loss, begin = 0, 0
    for length in LENGTHS:
        part = slice(begin, begin + length)
        logits = model(tokens[None, part], use_cache=False).logits[0, :-1]
        log_p = torch.log_softmax(logits, -1)
        with torch.no_grad():
            log_t = torch.log_softmax(teacher(tokens[None, part], use_cache=False).logits[0, :-1], -1)
        each = cross_entropy * -log_p.gather(1, tokens[part][1:, None])[:, 0]
        each = each + divergence * (log_t.exp() * (log_t - log_p)).sum(-1)
        loss = loss + (each * weights[part][1:]).sum()
        begin += length
    (loss / weights.sum()).backward()
    golden = {"tokens": tokens, "lengths": torch.tensor(LENGTHS), "weights": weights, "loss": loss.detach()[None]}
    golden.update({f"value.{k}": v.detach() for k, v in named.items()})
    return golden, by_checkpoint({k: v.grad for k, v in {**weights_of, **named}.items()}, config["model_type"] == "gpt_oss")


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or CONFIGS:
        special, cross_entropy, divergence = CONFIGS[name]
        config = {k: v for k, v in {**BASE, **special}.items() if v is not None}
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        golden, exact = gradients(folder, config, cross_entropy, divergence, torch.float64)
        _, rounded = gradients(folder, config, cross_entropy, divergence, torch.float32)
        golden["settings"] = torch.tensor([SCALE, cross_entropy, divergence])
        golden.update({f"gradient.{k}": v for k, v in exact.items()})
        errors = {k: (rounded[k].double() - v).norm() / v.norm() for k, v in exact.items()}
        golden.update({f"error.{k}": v[None] for k, v in errors.items()})
        save_file({k: v.float().contiguous() for k, v in golden.items()}, folder / "golden.safetensors")
        worst = max(errors, key=errors.get)
        print(name, f"{golden['loss'].item():.6f}", len(golden), f"{errors[worst]:.1e} of {worst}")


if __name__ == "__main__":
    main()
