# SPDX-License-Identifier: Apache-2.0
"""vLLM plugin for the hf-lra exports of shiftrt."""


def register():
    """Called by vLLM in each of its processes. The string delays the import of the model, which initialises the device."""
    from vllm import ModelRegistry

    ModelRegistry.register_model("ShiftrtForCausalLM", "shiftrt_vllm.model:ShiftrtForCausalLM")
