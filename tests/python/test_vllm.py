# SPDX-License-Identifier: Apache-2.0
"""The vLLM plugin on random models. It needs vLLM and the installed package export/vllm."""
import importlib.metadata
import os

import pytest
import torch
from random_export import HALF_BLOCKS, VOCABULARY, RandomExport

vllm = pytest.importorskip("vllm")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

PROMPTS = [[5, 9, 31, 7, 120, 44], [100, 3, 3, 17], [8]]


def test_entry_point():
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="shiftrt")
    entry.load()()
    assert "ShiftrtForCausalLM" in vllm.ModelRegistry.get_supported_archs()


@pytest.mark.parametrize("halves, norms", [((), False), (HALF_BLOCKS, False), (HALF_BLOCKS, True)], ids=["blocks", "halves", "norms"])
@pytest.mark.parametrize("family, eager", [("llama", True), ("mistral", True), ("qwen2", True), ("qwen3", True), ("gemma2", True),
                                           ("llama", False)])  # False: compiled, which is vLLM's default and takes minutes
def test_greedy_tokens(family, eager, halves, norms, tmp_path):
    export = RandomExport(tmp_path, family, halves, norms)
    llm = vllm.LLM(str(tmp_path), trust_remote_code=True, dtype="float32", skip_tokenizer_init=True, enforce_eager=eager,
                   max_model_len=128, max_num_seqs=4, seed=0)
    sampling = vllm.SamplingParams(temperature=0, max_tokens=16, logprobs=1, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    for prompt, answer in zip(PROMPTS, answers):
        completion = answer.outputs[0]
        tokens = list(completion.token_ids)
        with torch.no_grad():
            logits = export.oracle(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1, :VOCABULARY]
        assert logits.argmax(-1).tolist() == tokens
        expected = logits.log_softmax(-1).max(-1).values
        got = torch.tensor([step[token].logprob for step, token in zip(completion.logprobs, tokens)])
        assert (got - expected).abs().max() < 1e-4
