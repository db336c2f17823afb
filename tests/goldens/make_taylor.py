#!/usr/bin/env python3
"""Computes the scores of `--prune taylor` with PyTorch's autograd, and writes or prints them.

    pip install torch==2.6.0 transformers==5.23.0
    python3 make_taylor.py ../../models/demo ../../models/demo/calibration.txt --length 128 --tokens 1024 > taylor.json

The text is one document. As the program does when it is asked for all samples of a text, the script cuts it into samples of
`length` tokens, leaves out every eighth (they are held out), and takes whole samples until they hold `tokens` tokens:

    shiftrt inspect --model MODEL --calib TEXT:1000000x128 --prune taylor:0.25,tokens=1024

A score is the sum of |w * dL/dw| over the weights of a block's projections and norms, L being the mean cross entropy over
all predicted tokens. The sign of w * dL/dw is that of the whole text: gradients add up over the samples before the absolute
value is taken.
"""
import argparse
import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--ratio", type=float, default=0.25)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    ids = tokenizer(open(args.text, encoding="utf-8").read())["input_ids"]
    samples = [ids[i:i + args.length] for i in range(0, len(ids) // args.length * args.length, args.length)]
    assert len(samples) >= 8, "every eighth sample is held out"
    samples = [s for i, s in enumerate(samples) if i % 8 != 7][:-(-args.tokens // args.length)]
    predicted = sum(len(s) - 1 for s in samples)

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    total = 0.0
    for sample in samples:
        logits = model(torch.tensor([sample]), use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(sample[1:]), reduction="sum") / predicted
        loss.backward()
        total += loss.item()

    scores = []
    for layer in model.model.layers:
        scores.append(sum((p.double() * p.grad.double()).abs().sum().item() for name, p in layer.named_parameters()
                          if name.endswith(("_proj.weight", "layernorm.weight"))))
    count = int(args.ratio * len(scores))
    order = sorted(range(len(scores)), key=lambda l: (scores[l], -l))
    print(json.dumps({"length": args.length, "tokens": args.tokens, "loss": total, "scores": scores,
                      "removed": sorted(order[:count])}, indent=1))


if __name__ == "__main__":
    main()
