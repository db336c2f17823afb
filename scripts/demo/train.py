#!/usr/bin/env python3
"""Trains the demo model, a 16-layer Llama, on the corpus of corpus.py, on a CPU, in an hour or two.

    pip install torch==2.6.0 numpy safetensors tokenizers
    python3 train.py --corpus corpus --out demo --steps 1600          # can be stopped and started again: it resumes

Writes a Hugging Face directory (config.json, model.safetensors in bfloat16, tokenizer.json,
tokenizer_config.json) and training.json, the record that the model card quotes.
"""
import argparse
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    "vocab_size": 4096, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 0,
    "initializer_range": 0.02, "use_cache": True,
}
# Words with at most one leading space, numbers of up to three digits, punctuation, white space.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(corpus: Path, out: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"], special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train([str(corpus / "train.txt")], trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": None,
        "eos_token": "<|endoftext|>", "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False}, indent=2) + "\n")
    return tokenizer


class Block(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        d, m, q, kv = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"] * c["head_dim"], \
            c["num_key_value_heads"] * c["head_dim"]
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.q, self.k, self.v, self.o = linear(d, q), linear(d, kv), linear(d, kv), linear(q, d)
        self.gate, self.up, self.down = linear(d, m), linear(d, m), linear(m, d)
        self.norm1, self.norm2 = torch.nn.Parameter(torch.ones(d)), torch.nn.Parameter(torch.ones(d))
        self.c = c

    def forward(self, h, cos, sin):
        c, (b, t, _), hd = self.c, h.shape, self.c["head_dim"]
        x = F.rms_norm(h, h.shape[-1:], self.norm1, c["rms_norm_eps"])
        split = lambda y: y.view(b, t, -1, hd).transpose(1, 2)
        rope = lambda y: y * cos + torch.cat((-y[..., hd // 2:], y[..., :hd // 2]), -1) * sin
        q, k, v = rope(split(self.q(x))), rope(split(self.k(x))), split(self.v(x))
        groups = c["num_attention_heads"] // c["num_key_value_heads"]
        a = F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1),
                                           is_causal=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, t, -1))
        x = F.rms_norm(h, h.shape[-1:], self.norm2, c["rms_norm_eps"])
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = torch.nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = torch.nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = torch.nn.Parameter(torch.ones(c["hidden_size"]))
        inverse = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
        angle = torch.outer(torch.arange(c["max_position_embeddings"]), inverse).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("o.weight", "down.weight"))
                torch.nn.init.normal_(p, std=0.02 / (math.sqrt(2 * c["num_hidden_layers"]) if deep else 1))

    def forward(self, tokens, targets):
        h = self.embed(tokens)
        t = tokens.shape[1]
        for block in self.blocks:
            h = block(h, self.cos[:t], self.sin[:t])
        h = F.rms_norm(h, h.shape[-1:], self.norm, self.c["rms_norm_eps"])
        return F.cross_entropy(F.linear(h, self.embed.weight).flatten(0, 1), targets.flatten())

    def hugging_face(self):
        """The tensors in bfloat16 with the names of Hugging Face. The head is tied, so it is not stored."""
        names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
                 "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
        out = {"model.embed_tokens.weight": self.embed.weight, "model.norm.weight": self.norm}
        for l, block in enumerate(self.blocks):
            for ours, theirs in names.items():
                out[f"model.layers.{l}.{theirs}.weight"] = getattr(block, ours).weight
            out[f"model.layers.{l}.input_layernorm.weight"] = block.norm1
            out[f"model.layers.{l}.post_attention_layernorm.weight"] = block.norm2
        return {k: v.detach().to(torch.bfloat16).contiguous() for k, v in out.items()}


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by a quintic Newton-Schulz iteration (Jordan et al., 2024); for matrices only."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                buf = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                x = g if g.shape[0] <= g.shape[1] else g.T
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    s = x @ x.T
                    x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
                update = x if g.shape[0] <= g.shape[1] else x.T
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--decay", type=float, default=0.35, help="share of the steps during which the learning rate falls to 0")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    state_file = args.out / "state.pt"
    torch.manual_seed(args.seed)

    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json")) if (args.out / "tokenizer.json").exists() \
        else train_tokenizer(args.corpus, args.out)
    encode = lambda name: np.array(tokenizer.encode((args.corpus / f"{name}.txt").read_text()).ids, dtype=np.int64)
    train, heldout = encode("train"), encode("heldout")
    print(f"{len(train)} training tokens, {len(heldout)} held out", flush=True)

    model = Model(CONFIG)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("embed")]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or n.startswith("embed")]
    optimizers = [Muon(matrices, args.lr), torch.optim.AdamW(rest, args.lr, betas=(0.9, 0.95), weight_decay=0.0)]
    step, spent, log = 0, 0.0, []
    if state_file.exists():
        state = torch.load(state_file, weights_only=False)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        step, spent, log = state["step"], state["seconds"], state["log"]
        print(f"resumed at step {step}", flush=True)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    def evaluate(limit=None):
        model.eval()
        n = CONFIG["max_position_embeddings"]
        rows = torch.from_numpy(heldout[:len(heldout) // n * n].reshape(-1, n))[:limit]
        with torch.no_grad():
            loss = sum(model(r[None, :-1], r[None, 1:]).item() for r in rows) / len(rows)
        model.train()
        return loss

    def save_state():
        torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step,
                    "seconds": spent, "log": log}, str(state_file) + ".tmp")
        os.replace(str(state_file) + ".tmp", state_file)

    compiled = torch.compile(model)
    start = time.time()
    while step < args.steps:
        rate = min(1.0, (step + 1) / 100, (args.steps - step) / (args.decay * args.steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = args.lr * rate
        # Windows are drawn from a generator seeded by the step, so a resumed run sees the same data as an unbroken one.
        rng = np.random.default_rng([args.seed, step])
        begin = rng.integers(0, len(train) - args.length - 1, args.batch)
        window = torch.from_numpy(np.stack([train[b:b + args.length + 1] for b in begin]))
        loss = compiled(window[:, :-1], window[:, 1:])
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        if step % 20 == 0 or step == args.steps:
            spent, start = spent + time.time() - start, time.time()
            print(f"step {step} loss {loss.item():.4f} {spent:.0f} s", flush=True)
        if step % 200 == 0:
            log.append({"step": step, "heldout_loss": round(evaluate(24), 4)})
            print("held out", log[-1], flush=True)
            save_state()
    save_state()

    save_file(model.hugging_face(), args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    final = evaluate()
    (args.out / "training.json").write_text(json.dumps({
        "steps": step, "batch": args.batch, "length": args.length, "learning_rate": args.lr, "decay": args.decay,
        "seed": args.seed, "training_tokens": len(train), "tokens_seen": step * args.batch * args.length,
        "seconds": round(spent), "heldout_loss_float32": final, "heldout_perplexity_float32": math.exp(final),
        "heldout_log": log}, indent=2) + "\n")
    print(f"held-out loss {final:.4f}, perplexity {math.exp(final):.3f}")


if __name__ == "__main__":
    main()
