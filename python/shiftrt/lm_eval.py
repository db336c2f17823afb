# SPDX-License-Identifier: Apache-2.0
"""The model class `shiftrt` of lm-evaluation-harness, whose command runs with it as

    python -m shiftrt.lm_eval run --model shiftrt --model_args model=DIR --tasks piqa

lm_eval has no way to find model classes of other packages by itself; in a program, `import shiftrt.lm_eval` registers the class.
"""
from __future__ import annotations

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

import shiftrt


@register_model("shiftrt")
class ShiftrtLM(LM):
    """A model that `shiftrt.open` opens. The library packs requests into batches itself, so that batch_size is not needed.

    Args:
        model: as of `shiftrt.open`: a directory, a GGUF file or a name; or a shiftrt.Model.
        device, threads, weights, lora: as of `shiftrt.open`; by default those of that function.
        max_gen_toks: tokens to generate at most, where a task does not say.
        batch_size, max_batch_size: lm_eval gives them to every model; they change nothing here.
    """

    def __init__(self, model, device=None, threads=0, weights="as-stored", lora="", max_gen_toks=256, batch_size=None,
                 max_batch_size=None):
        super().__init__()
        if not isinstance(model, shiftrt.Model):
            model = shiftrt.open(model, device=device or "cpu", threads=int(threads), weights=weights, lora=lora)
        self.model, self.max_gen_toks = model, int(max_gen_toks)

    def loglikelihood(self, requests, disable_tqdm=False):
        """(log-likelihood, whether it is greedy) of each request's (context, continuation)."""
        return self.model.score_texts([request.args for request in requests], progress=not disable_tqdm)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """The log-likelihood of each request's document."""
        return self.model.score_documents([request.args[0] for request in requests], progress=not disable_tqdm)

    def generate_until(self, requests, disable_tqdm=False):
        """The text that follows each request's context, before the first of its stops."""
        return [self._generated(*request.args) for request in requests]

    def _encoded(self, context):
        """Token ids of a context. One that spells the beginning-of-sequence token out, as chat templates do, gets no second one."""
        tokens, added = self.model.encode(context), self.model.encode("")
        return tokens[1:] if added and tokens[:2] == added * 2 else tokens

    def _generated(self, context, options):
        settings = normalize_gen_kwargs(options, self.max_gen_toks)
        length = settings["max_gen_toks"]
        room = self.model.max_positions - length
        if room < 1:
            raise shiftrt.UsageError(f"{length} tokens leave no room for a context in {self.model.max_positions} positions", "max_gen_toks")
        sampling = {name: settings[name] for name in ("top_p", "top_k") if settings["do_sample"] and name in settings}
        return self.model.generate(self._encoded(context)[-room:], max_tokens=length, temperature=settings.get("temperature", 0),
                                   stop=[stop for stop in settings.get("until", []) if stop], **sampling).text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()
