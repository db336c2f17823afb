# SPDX-License-Identifier: Apache-2.0
"""Models and what is done with them."""
from __future__ import annotations

import builtins
import contextlib
import ctypes
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

import numpy as np

from . import _installed, _native
from ._progress import Steps, listener_of
from ._results import Evaluation, Finetuned, Generation, Perplexity, Step, Table, Task, TaskResult
from .errors import UsageError

# A text: the name of a file or a known name ("c4"), or the texts themselves as a list of str.
Text = Union[str, os.PathLike, Sequence[str]]


@contextlib.contextmanager
def _text_file(text, form: str):
    """The name of a file with `text`; texts that are given themselves are in a temporary file of the form txt or jsonl."""
    if text is None or isinstance(text, (str, os.PathLike)):
        name = "" if text is None else os.fspath(text)
        # File names may have blanks; a known name has none.
        if any(len(part.split()) > 1 and not os.path.exists(part) for part in [name, *name.split(",")][bool("," in name):]):
            raise UsageError(f"there is no file {json.dumps(name[:80], ensure_ascii=False)}; pass a text itself in a list, [text]", "text")
        yield name
        return
    if isinstance(text, (bytes, dict)) or not hasattr(text, "__iter__"):
        raise UsageError(f'{text!r} is no text; pass the name of a file, a known name such as "c4", or a list of texts', "text")
    text = list(text)
    for document in text:
        if not isinstance(document, str):
            raise UsageError(f"{document!r} in the list is no text; pass a list of str", "text")
    with tempfile.TemporaryDirectory(prefix="shiftrt-") as directory:
        name = os.path.join(directory, "given-text." + form)
        with builtins.open(name, "w", encoding="utf-8") as file:
            if form == "jsonl":
                file.writelines(json.dumps({"text": document}) + "\n" for document in text)
            else:
                file.write("\n\n".join(text))
        yield name


def _counted(text, samples, tokens):
    """Name, samples and tokens of a text that may be named with them, "NAME:SAMPLESxTOKENS", as on the command line."""
    counted = re.fullmatch(r"(.+):(\d+)(?:x(\d+))?", text, re.DOTALL) if isinstance(text, str) and not os.path.exists(text) else None
    if counted is None:
        return text, samples, tokens
    for field, argument, number in (("samples", samples, counted[2]), ("tokens", tokens, counted[3])):
        if argument is not None and number is not None:
            raise UsageError(f"{argument}, and the text {text} says {number}; give one of them", field)
    return counted[1], samples or int(counted[2]), tokens or (int(counted[3]) if counted[3] else None)


def _listed(values) -> list:
    """The values as a list; one text or path alone is a list of one."""
    return [values] if isinstance(values, (str, os.PathLike)) else list(values)


def _checkpoint(keep, *settings) -> dict[str, str]:
    """The setting that names the file in `keep` for the state of a training with these settings."""
    if not keep:
        return {}
    named = [value if value is None or isinstance(value, (str, os.PathLike)) else list(value) for value in settings]
    return {"checkpoint": os.path.join(keep, hashlib.sha256(repr(named).encode()).hexdigest()[:16] + ".checkpoint")}


def _word(value) -> str:
    """A setting in the words of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _resources(device: str, threads: int, memory: int, products: str) -> _native.Resources:
    """The resources that computations may use; "auto" means the first GPU where there is one, as on the command line."""
    gpus = [0] if device == "auto" else _gpus(device)
    try:
        if gpus:
            for library in _installed.cuda_libraries():
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # dlopen() of its name then finds it
        return _native.Resources(threads, memory, gpus, products)
    except (OSError, UsageError):
        if device != "auto":
            raise
        return _native.Resources(threads, memory, [], products)


def _gpus(device: str) -> list[int]:
    if device == "cpu":
        return []
    name, _, indices = device.partition(":")
    try:
        if name == "cuda":
            return [int(index) for index in (indices or "0").split(",")]
    except ValueError:
        pass
    raise UsageError(f'"{device}" is none of "auto", "cpu", "cuda", "cuda:1" and "cuda:0,1"', "device")


def open(name: str | os.PathLike, *, device: str = "auto", threads: int = 0, memory: int = 0, weights: str = "as-stored",
         check_finite: bool = False, lora: str | os.PathLike = "", products: str = "auto", progress=None) -> Model:
    """Opens a model.

    Args:
        name: a directory with a Hugging Face checkpoint or one that `Model.save` has written; a GGUF file; "demo", the model that comes
            with the wheel; or a name that is looked up in the directories of SHIFTRT_MODELS and in the Hugging Face cache. Nothing is
            downloaded; `pull` does that.
        device: "auto", which is the first GPU that the library can use and otherwise the CPU; "cpu", "cuda", or the indices of GPUs, "cuda:0,1". The first runs the model, the others share calibration passes.
        threads: threads of one computation; 0: one per core that the process may use.
        memory: bytes of host memory that the sums over calibration text may take; 0: what is free.
        weights: their type in memory: "as-stored", "float32", "float16", "bfloat16", or "expanded", which is as stored but bfloat16
            for quantised ones. A GPU expands quantised types without kernels there to bfloat16 in any case.
        check_finite: read all weights and refuse infinities and NaN.
        lora: a directory with a LoRA adapter of peft for this model, which is merged into its weights.
        products: the precision of products on a CPU: "float32", "bfloat16" (with AVX512-BF16 or AMX), or "auto", which is bfloat16
            on such a CPU where layers are scored, a repair is fitted or a model is trained, and float32 in everything else.
        progress: True shows the progress on stderr; a function receives it as (phase, done, total), and an object by its methods
            begin(phase, total), advance(count) and end().

    Raises:
        Error: nothing is found, or a file is malformed or not supported.
        UsageError: this machine or this build lacks the device.
    """
    resources = _resources(device, threads, memory, products)
    handle = _native.open(os.fspath(name), weights, check_finite, os.fspath(lora), listener_of(progress))
    return Model(handle, resources)


def pull(name: str, *, dataset: bool = False, include: Sequence[str] = (), exclude: Sequence[str] = (),
         verify: bool = False) -> dict[str, str]:
    """Downloads a model or a data set of the Hugging Face hub into its cache. An interrupted call can be repeated.

    Args:
        name: "ORG/NAME", "ORG/NAME@REVISION" or a known name such as "qwen2-1.5b"; of a data set also a task, "paper7" or a text such as
            "c4".
        dataset: the name means a data set.
        include: patterns of files; by default those that a model needs, or all of a data set.
        exclude: patterns of files that are left out.
        verify: also compare the checksums of the files that are there.

    Returns:
        The directory of each repository.
    """
    return dict(_native.pull(name, dataset, _listed(include), _listed(exclude), verify))


def tasks() -> list[Task]:
    """The tasks that `Model.evaluate` can name."""
    return [Task(*task) for task in _native.tasks()]


def _evaluate(models: dict[str, Model], tasks, data, progress, settings) -> Evaluation:
    """Scores models that share their weights on the same items."""
    values = {"tasks": tasks if isinstance(tasks, str) else ",".join(tasks), "data": "\n".join(map(os.fspath, _listed(data))),
              **{name: value for name, value in settings.items() if value is not None}}
    handles, resources = [model._handle for model in models.values()], next(iter(models.values()))._resources
    results = _native.evaluate(handles, values, resources, listener_of(progress))
    return Evaluation([
        TaskResult(task, quoted, items, seconds,
                   {name: {metric: (value, error) for metric, value, error in metrics} for name, metrics in zip(models, scores)})
        for task, quoted, items, seconds, scores in results])


class Model:
    """A language model: shared weights, a tokenizer, and the plan that says which blocks and adapters run.

    Models that are made of one another share their weights. All methods may be called from several threads; those that run the model
    (generate, logits, hidden) take turns. Computations release the GIL. Ctrl-C ends a computation at its next report of progress, or
    the generation at its next token.
    """

    def __init__(self, handle: _native.LanguageModel, resources: _native.Resources, owner: object = None):
        self._handle, self._resources, self._runner = handle, resources, None
        self._runner_lock = threading.Lock()  # so that the first calls of several threads make one runner
        self._owner = owner  # keeps a temporary directory with the model's files

    def _derived(self, handle) -> Model:
        return Model(handle, self._resources, self._owner)

    def _run(self) -> _native.Runner:
        with self._runner_lock:
            if self._runner is None:
                self._runner = _native.Runner(self._handle, self._resources)
            return self._runner

    def _ids(self, text_or_ids, field: str) -> np.ndarray:
        """The token ids of the argument `field`. numpy would cut other numbers to int32 without a word."""
        given = self.encode(text_or_ids) if isinstance(text_or_ids, str) else text_or_ids
        if isinstance(given, (bytes, dict)) or not hasattr(given, "__iter__") or getattr(given, "ndim", 1) != 1:
            raise UsageError(f'{given!r} is neither a text nor a list of token ids; pass a str such as "Hello", or a list such as [3]',
                             field)
        ids = np.asarray(given if hasattr(given, "__len__") else list(given))
        if ids.size > 0:
            if ids.dtype.kind not in "iu":
                raise UsageError(f"token ids are whole numbers of at most 64 bits, not of type {ids.dtype}", field)
            if ids.min() < 0 or ids.max() >= 2**31:
                raise UsageError(f"{ids.min() if ids.min() < 0 else ids.max()} is not a token id", field)
        return np.ascontiguousarray(ids, dtype=np.int32)

    @property
    def name(self) -> str:
        """The name under which the model was opened."""
        return self._handle.name

    @property
    def directory(self) -> str:
        """The directory of the original model, or its GGUF file."""
        return self._handle.directory

    @property
    def layers(self) -> int:
        """Blocks of the original model."""
        return self._handle.shape[0]

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self._handle.shape[1]

    @property
    def vocabulary(self) -> int:
        """Token ids are 0 to vocabulary - 1."""
        return self._handle.shape[2]

    @property
    def max_positions(self) -> int:
        """Tokens that one sequence may have."""
        return self._handle.shape[3]

    @property
    def removed_layers(self) -> list[int]:
        """Layers of the original model, counted from 0 and ascending, of which nothing runs."""
        return self._handle.removed_layers

    @property
    def blocks(self) -> int:
        """Blocks of which at least one half runs."""
        return self._handle.blocks

    @property
    def adapters(self) -> int:
        """Adapters that run."""
        return self._handle.adapters

    @property
    def parameters(self) -> int:
        """Parameters of the model as it runs, adapters included."""
        return self._handle.parameters

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights and adapters that decoding one token reads."""
        return self._handle.bytes_per_token

    @property
    def provenance(self) -> dict[str, Any] | None:
        """How the model was made, as the key "provenance" of shiftrt.json; None for an original model."""
        made = self._handle.provenance()
        return None if made is None else json.loads(made)

    def __repr__(self) -> str:
        adapters = f", {self.adapters} adapters" if self.adapters else ""
        return f"<shiftrt.Model {self.name}: {self.blocks} of {self.layers} blocks{adapters}, {self.parameters / 1e6:.1f} M parameters>"

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, preceded by the beginning-of-sequence token if the model's tokenizer adds one."""
        return self._handle.encode(text)

    def encode_message(self, message: str, system: str = "") -> list[int]:
        """Token ids of the first message of a conversation with an instruct model, up to where its reply begins.

        Args:
            message: the user's message.
            system: the system's message; by default there is none.

        Raises:
            Error: the model has no chat template.
        """
        return self.encode_chat([("system", system)] * bool(system) + [("user", message)])

    def encode_chat(self, messages: Iterable[dict[str, str] | tuple[str, str]]) -> list[int]:
        """Token ids of a conversation with an instruct model, as its chat template says, up to where its next reply begins.

        `generate` continues them: the result's text is the reply.

        Args:
            messages: as transformers has them, {"role": "user", "content": "..."}, or (role, content) pairs. The roles are "system",
                "user" and "assistant".

        Raises:
            Error: the model has no chat template, or the template refuses the conversation.
        """
        pairs = [(message["role"], message["content"]) if isinstance(message, dict) else tuple(message) for message in messages]
        return self._handle.encode_chat(pairs)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._handle.decode(self._ids(ids, "ids"))

    def without(self, parts: Iterable[int | str]) -> Model:
        """The same weights without some blocks, and without any adapter.

        Args:
            parts: ascending: blocks by their numbers, counted from 0, and halves of blocks as "3.attn" or "3.mlp".
        """
        return self._derived(self._handle.without([str(part) for part in parts]))

    def repair(self, prune: str | Sequence[int | str] | None = None, *, recipe: str | None = None, text: Text | None = None,
               samples: int | None = None, tokens: int | None = None, recover: str = "", recover_text: Text | None = None,
               recover_loss: str | None = None, progress=None, keep: str | os.PathLike = "", **settings) -> Repair:
        """Removes blocks and repairs the model without training.

        Args:
            prune: what is removed, in the words of the command line: "bi:0.25", "streamline:8", "layers=3.attn,5,8-10"; or a list of
                layers and halves, [5, 8, "9.mlp"]. By default as the recipe says, or "streamline:0.25".
            recipe: settings by name: "paper", "stock", "adapters", "best", "portable", or "recover", which has a training (`recover`).
                `shiftrt.recipes()` lists them.
            text: calibration text: the name of a file (.txt, .jsonl, .json, .parquet) or a known name such as "c4", also with the
                samples and their tokens, "c4:128x512"; or a list of texts. By default the file calibration.txt next to the model.
            samples: samples of the text, by default 256; an eighth of them is held out.
            tokens: tokens of a sample, by default 512; at most the positions of the model.
            recover: train the repaired model for so long, "30min" or "tokens=1M": all kept blocks and the adapters, as `run --recover`
                of the command. By default it is not trained.
            recover_text: text to learn from in that training; by default all of `text`. Several names with commas between them are
                mixed. "own:FILE" is what the original model answers to the prompts of a file, and "own" to those of Alpaca.
            recover_loss: what that training lowers: "ce", the cross entropy with the text; "kl", the divergence from the predictions
                of the original model; or "both", half of each. By default as `run --recover` does.
            progress: as of `open`.
            keep: a directory of its own in which the selection, the fit and the state of the training are kept, so that the same call
                takes them from there after an interruption. A directory with other files is refused.
            **settings: correction, rank, lambda_ (for lambda), penalize_bias, factorization, mode, weighting, span, gate, heal,
                merge and seed, in the words of the command line; they override those of the recipe.

        Returns:
            The repaired model as `corrected`, the model without a repair as `pruned`, the trained one as `recovered`, and the report.

        Raises:
            UsageError: a setting that makes no sense; `field` is its name.
            Error: the text is missing, malformed or too short, or a numerical failure.
        """
        words = {field.removesuffix("_"): _word(value) for field, value in settings.items()}
        if isinstance(prune, (int, float)):
            raise UsageError(f'{prune} has no criterion; write "bi:{prune}", or a list of layers', "prune")
        if prune is not None:
            words["prune"] = prune if isinstance(prune, str) else "layers=" + ",".join(map(str, prune))
        recover = recover or _native.recipe_budget(recipe or "")
        if recover:
            _native.check_budget(recover)  # an error in it is reported before any work
        else:
            for field, value in (("recover_text", recover_text), ("recover_loss", recover_loss)):
                if value is not None:
                    raise UsageError("it goes with recover", field)
        text, samples, tokens = _counted(text, samples, tokens)
        for field, count in (("samples", samples), ("tokens", tokens)):
            if count is not None and count < 1:
                raise UsageError(f"{count}, expected at least 1", field)
        if text is None and (samples or tokens):
            text = os.path.join(self.directory, "calibration.txt")
        listener = listener_of(progress)
        with _text_file(text, "jsonl") as file:
            if file:
                words["text"] = f"{file}:{samples or 256}x{tokens or 512}"
            made = _native.repair(self._handle, recipe or "", words, self._resources, listener, os.fspath(keep))
            repair = Repair(self, *(None if handle is None else self._derived(handle) for handle in made))
            if recover:
                steps = listener and Steps(listener)
                repair.recovery = (repair.merged or repair.corrected).finetune(
                    preset="recover", budget=recover, text=recover_text or file or None, seed=int(words.get("seed", 0)), progress=steps,
                    **({} if recover_loss is None else {"loss": recover_loss}),
                    **_checkpoint(keep, recover, text, recover_text, recover_loss))
                if steps:
                    steps.end()
        return repair

    def perplexity(self, text: Text, *, protocol: str = "gptq", tokens: int = 0, progress=None) -> Perplexity:
        """Measures perplexity over disjoint windows of a text.

        Args:
            text: the name of a UTF-8 text file or a known name such as "wikitext2-test"; or a list of texts, which blank lines join.
            protocol: "gptq" (windows of 2048 tokens) or "seq128" (of 128); at most the model's positions.
            tokens: measure on the first so many tokens, but on one window at least; 0: all.
            progress: as of `open`.
        """
        with _text_file(text, "txt") as file:
            return Perplexity(*_native.perplexity(self._handle, file, protocol, tokens, self._resources, listener_of(progress)))

    def evaluate(self, tasks: str | Iterable[str] = "paper7", *, data: Sequence[str] = (), progress=None,
                 **settings) -> Evaluation:
        """Scores the model on zero-shot suites; the numbers are those of lm-evaluation-harness 0.4.

        Args:
            tasks: names of tasks, "paper7" or "all" (those without generated replies).
            data: directories with data sets, and "TASK=FILE"; the Hugging Face cache is searched after them.
            progress: as of `open`.
            **settings: the other fields of SuiteSettings in include/shiftrt/measurements.h by name: shots, limit, bos, all_metrics,
                allow_code.
        """
        return _evaluate({"model": self}, tasks, data, progress, settings)

    def score(self, sequences: Iterable[tuple[Sequence[int], int]], *, progress=None) -> list[tuple[float, bool]]:
        """Log-likelihoods of the last tokens of sequences, of which a common beginning is computed once.

        Args:
            sequences: (token ids, how many of the last are scored) pairs; at least one token of each is not scored.
            progress: as of `open`.

        Returns:
            Of each sequence the sum of the natural logarithms of the probabilities, and whether each token was the most likely one.
        """
        wanted = [(self._ids(ids, "sequences").tolist(), int(scored)) for ids, scored in sequences]
        return _native.score(self._handle, wanted, self._resources, listener_of(progress))

    def score_texts(self, texts: Iterable[tuple[str, str]], *, progress=None) -> list[tuple[float, bool]]:
        """Log-likelihoods of texts, encoded as lm-evaluation-harness does it.

        Args:
            texts: (context, text) pairs; the text is scored.
            progress: as of `open`.

        Returns:
            As `score`.
        """
        return self.score(_native.encode_continuations(self._handle, [tuple(pair) for pair in texts]), progress=progress)

    def score_documents(self, documents: Iterable[str], *, progress=None) -> list[float]:
        """Log-likelihoods of whole documents, in windows of all positions of the model, as lm-evaluation-harness makes them."""
        windows = [_native.encode_document(self._handle, document) for document in documents]
        scores = iter(self.score([window for document in windows for window in document], progress=progress))
        return [sum(next(scores)[0] for _ in document) for document in windows]

    def generate(self, prompt: str | Sequence[int], *, max_tokens: int = 64, temperature: float = 0, top_p: float = 1, top_k: int = 0,
                 seed: int = 0, stop: Sequence[str] = (), stop_at_end: bool = True,
                 on_text: Callable[[str], None] | None = None) -> Generation:
        """Continues a prompt.

        Args:
            prompt: a text, or token ids, to which no beginning-of-sequence token is added.
            max_tokens: tokens to generate at most.
            temperature: 0: always the most likely token.
            top_p: draw from the most likely tokens that have this probability together.
            top_k: draw from so many of the most likely tokens; 0: from all.
            seed: of the random numbers; the same seed gives the same tokens.
            stop: texts before the first of which the result ends.
            stop_at_end: stop before an end-of-sequence token of the model.
            on_text: called with each piece of text as soon as its characters are whole.
        """
        stops = _listed(stop)
        if "" in stops:
            raise UsageError("an empty text would end the result before its first token", "stop")
        return Generation(*self._run().generate(self._ids(prompt, "prompt"), max_tokens, temperature, top_p, top_k, seed, stop_at_end,
                                                stops, on_text))

    def generate_many(self, prompts: Sequence[str | Sequence[int]], *, batch: int = 16, max_tokens: int = 64, temperature: float = 0,
                      top_p: float = 1, top_k: int = 0, seed: int = 0, stop_at_end: bool = True) -> list[Generation]:
        """Continues many prompts, several of them in each pass over the weights.

        Args:
            prompts: texts, or token ids, to which no beginning-of-sequence token is added.
            batch: prompts that are continued together at most. Each takes the memory of its keys and values.
            max_tokens, temperature, top_p, top_k, stop_at_end: as for generate().
            seed: prompt i draws with seed + i, and up to rounding has the reply that generate() gives with it.

        Returns:
            A generation per prompt. Its seconds are 0, because they are not measured for each.
        """
        replies = self._run().generate_many([self._ids(prompt, "prompts") for prompt in prompts], max_tokens, temperature, top_p, top_k,
                                            seed, stop_at_end, batch)
        return [Generation(*reply) for reply in replies]

    def logits(self, ids: str | Sequence[int]) -> np.ndarray:
        """Logits of the token that follows each position: float32 of shape (tokens, vocabulary).

        The library writes into the memory of the array; nothing is copied.

        Args:
            ids: token ids, or a text.
        """
        return self._run().logits(self._ids(ids, "ids"), self.vocabulary)

    def hidden(self, ids: str | Sequence[int], layers: Iterable[int] | None = None) -> dict[int, np.ndarray]:
        """The residual stream before blocks, and, under the key `self.layers`, after the last: float32 of shape (tokens, hidden_size).

        Each array is one copy of the stream, which the next block overwrites.

        Args:
            ids: token ids, or a text.
            layers: layers of the original model that run, or `self.layers`; by default all of them.

        Raises:
            UsageError: a layer that does not run.
        """
        wanted = set() if layers is None else {int(layer) for layer in layers}
        if layers is not None and not wanted:
            return {}
        return self._run().hidden(self._ids(ids, "ids"), wanted)

    def finetune(self, method: str | None = None, *, preset: str = "", text: Text | None = None,
                 validation_text: Text | None = None, progress=None, **settings) -> Finetuned:
        """Trains the model further. Ctrl-C ends the training after the current step; with `checkpoint` the same call continues it.

        Args:
            method: by default "lora", or as the preset says: "lora" (low-rank changes of projections), "partial" (all
                tensors of some blocks), "adapters" (the adapters alone) or "replacement" (one block in the place of each run of
                removed blocks).
            preset: "recover": the settings that recover what a repaired model has lost, with adapters if the model has any; others
                override them. It reads the text once, unless `epochs`, `steps` or `budget` is given.
            text: text to learn from, as of `repair`.
            validation_text: text for the held-out sequences; by default part of `text`.
            progress: True shows steps and losses on stderr; a callable receives a `Step` after each, and once more after a validation.
            **settings: the fields of FinetuneSettings in include/shiftrt/training.h, and those of its `lora`, by name: rate, steps,
                epochs, budget ("30min", "tokens=1M"), batch, length, samples, rank, alpha, dropout, targets, layers, loss, seed,
                checkpoint, ...
        """
        def show(step: Step):
            total = f" of {step.total}" if step.total else ""  # there is none of a training for a given time
            print(f"\rstep {step.done}{total}: loss {step.loss:.4f}", end="\n" if step.done == step.total else "", file=sys.stderr,
                  flush=True)

        listener = show if progress is True else progress
        if preset not in ("", "recover"):
            raise UsageError(f'"{preset}" is not "recover"', "preset")
        values = dict(settings) if method is None else {"method": method, **settings}
        with _text_file(text, "jsonl") as file, _text_file(validation_text, "jsonl") as held_out:
            values.update({name: value for name, value in (("text", file), ("validation_text", held_out)) if value})
            handle, trained, losses, norms, validations, *rest = _native.finetune(
                self._handle, values, preset == "recover", self._resources, listener and (lambda *step: listener(Step(*step))))
        measured = dict(validations)
        steps = [Step(i, len(losses), loss, norm, measured.get(i)) for i, (loss, norm) in enumerate(zip(losses, norms), 1)]
        return Finetuned(self._derived(handle), trained, steps, validations, *rest)

    def export(self, format: str, directory: str | os.PathLike, *, shard_bytes: int = 5_000_000_000, q8_0: bool = False,
               base_name: str = "", progress=None) -> list[str]:
        """Writes the model for other programs, into a new or empty directory.

        Args:
            format: a name that `shiftrt.export_formats()` lists: "hf", "hf-lra", "gguf", ...
            directory: the directory to write.
            shard_bytes: bytes of tensors per file of weights, where the format has several.
            q8_0: matrices in GGUF's Q8_0; of "gguf" only.
            base_name: the name of the original model for others, "org/name"; by default as its files say.
            progress: as of `open`.

        Returns:
            Notes for the user.

        Raises:
            UsageError: the format cannot hold the model; the message names those that can.
        """
        return _native.export(self._handle, os.fspath(directory), format, shard_bytes, q8_0, base_name, self._resources,
                              listener_of(progress))

    def save(self, directory: str | os.PathLike, *, with_weights: bool = False, merge_lora: bool = False) -> None:
        """Writes the plan, its adapters and the weights that it changes; `open` and the command line read the directory.

        Args:
            directory: it is made if it does not exist, and files of the same names are replaced.
            with_weights: also write the blocks that run, the configuration and the tokenizer, so that the directory does not need the
                original model.
            merge_lora: of a model that was trained with LoRA: write changed projections instead of the factors.
        """
        self._handle.save(os.fspath(directory), with_weights, merge_lora)

    def to_transformers(self, **options):
        """The model as a module of transformers, with the same blocks; see `shiftrt.from_transformers` for the way back.

        A model with adapters takes the architecture that the format hf-lra brings along, whose code transformers then runs.

        Args:
            **options: for AutoModelForCausalLM.from_pretrained, such as dtype.
        """
        from . import _transformers
        return _transformers.to_transformers(self, **options)


class Repair(Table):
    """The models that `Model.repair` has made. It prints as a table of the fits.

    Attributes:
        original: the model that was repaired.
        pruned: it without the removed layers, and without a repair.
        corrected: it with the repair.
        merged: it with neighbouring adapters merged, where the recipe asks for that; else None.
        recovery: the training of the last of them, where `recover` asked for one; else None.
    """

    def __init__(self, original: Model, pruned: Model, corrected: Model, merged: Model | None):
        self.original, self.pruned, self.corrected, self.merged = original, pruned, corrected, merged
        self.recovery: Finetuned | None = None

    @property
    def recovered(self) -> Model | None:
        """The model that `recover` has trained; else None."""
        return None if self.recovery is None else self.recovery.model

    @property
    def models(self) -> dict[str, Model]:
        """The variants by name."""
        models = {"original": self.original, "pruned": self.pruned, "corrected": self.corrected, "merged": self.merged,
                  "recovered": self.recovered}
        return {name: model for name, model in models.items() if model is not None}

    @property
    def report(self) -> dict[str, Any]:
        """The removed layers and how well the fits explain them, as docs/dev/formats.md lists it under "provenance"."""
        return self.corrected.provenance

    def evaluate(self, tasks: str | Iterable[str] = "paper7", *, data: Sequence[str] = (), progress=None,
                 **settings) -> Evaluation:
        """Scores all variants on the same items; the arguments are those of `Model.evaluate`."""
        return _evaluate(self.models, tasks, data, progress, settings)

    def _table(self):
        report = self.report
        rows = []
        for fit in report.get("sites", []) + report.get("healed", []):
            parts = fit["layers"]
            name = str(parts[0]) if len(parts) == 1 else f"{parts[0]}-{parts[-1]}"
            rows.append([f"{name} {fit['part']}".strip(), fit["rank"] or "", fit["lambda"], fit["r2_fit"], fit["r2_heldout"]])
        removed = ", ".join(map(str, report["selection"]["removed"]))
        caption = (f"{self.original.name}: removed {removed} by {report['selection']['criterion']}; "
                   f"{self.corrected.parameters / 1e6:.1f} M of {self.original.parameters / 1e6:.1f} M parameters")
        return caption, ["fit", "rank", "lambda", "R2 fitted", "R2 held out"], rows
