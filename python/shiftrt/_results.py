# SPDX-License-Identifier: Apache-2.0
"""Results of calls. Each prints as a table, and as HTML in a notebook."""
from __future__ import annotations

import html
import math
from dataclasses import dataclass


def _shown(value) -> str:
    if value is None or isinstance(value, float) and math.isnan(value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Table:
    """Something that prints as a table: a caption, a row of headings, and rows."""

    def _table(self) -> tuple[str, list[str], list[list[object]]]:
        raise NotImplementedError

    def __str__(self) -> str:
        caption, headings, rows = self._table()
        cells = [headings] + [[_shown(value) for value in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])])
                 for row in cells]
        return "\n".join([caption] * bool(caption) + [line.rstrip() for line in lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption, headings, rows = self._table()

        def row(tag, values):
            return "<tr>" + "".join(f"<{tag}>{html.escape(_shown(value))}</{tag}>" for value in values) + "</tr>"

        return ("<table>" + (f"<caption>{html.escape(caption)}</caption>" if caption else "") + "<thead>" + row("th", headings) +
                "</thead><tbody>" + "".join(row("td", values) for values in rows) + "</tbody></table>")


@dataclass(frozen=True, repr=False)
class Perplexity(Table):
    """The perplexity of a model on a text.

    Attributes:
        perplexity: exp(mean_nll).
        mean_nll: mean negative log-likelihood, in nats per predicted token.
        predicted: number of tokens that were predicted.
        window: tokens per window.
        tokens: tokens of the text that were read.
        all: tokens of the whole text.
        text: the name of its file.
        seconds: duration of the measurement.
    """

    perplexity: float
    mean_nll: float
    predicted: int
    window: int
    tokens: int
    all: int
    text: str
    seconds: float

    def __float__(self) -> float:
        return self.perplexity

    def _table(self):
        return "", ["text", "perplexity", "mean NLL", "predicted", "window", "seconds"], [
            [self.text, self.perplexity, self.mean_nll, self.predicted, self.window, self.seconds]]


@dataclass(frozen=True)
class Generation:
    """The text that a model has written. str() of it is the text.

    Attributes:
        tokens: generated token ids, without the prompt.
        text: what they add to the prompt, without special tokens; it ends before the first of the stops.
        prompt_tokens: tokens of the prompt.
        prefill_seconds: time for the prompt and the first token.
        decode_seconds: time for all tokens after the first.
    """

    tokens: list[int]
    text: str
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TaskResult:
    """The scores of models on one task.

    Attributes:
        task: its name.
        quoted: the name of the metric that is quoted for the task.
        items: questions, or documents.
        seconds: duration of the scoring.
        scores: of each model, by its name: {metric: (value, standard error)}. An accuracy is between 0 and 1, and the standard error is
            NaN where there is none.
    """

    task: str
    quoted: str
    items: int
    seconds: float
    scores: dict[str, dict[str, tuple[float, float]]]


class Evaluation(Table):
    """The results of suites: `evaluation["piqa"]` is one task's, and iterating gives those of all tasks."""

    def __init__(self, results: list[TaskResult]):
        self.results = results

    def __iter__(self):
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, task: str) -> TaskResult:
        return {result.task: result for result in self.results}[task]

    def _table(self):
        models = list(self.results[0].scores)
        rows = []
        for result in self.results:
            for metric in result.scores[models[0]]:
                values = [result.scores[model][metric] for model in models]
                rows.append([result.task, metric, result.items] +
                            [_shown(value) + ("" if math.isnan(error) else f" ± {error:.2g}") for value, error in values])
        return "", ["task", "metric", "items"] + models, rows


@dataclass(frozen=True)
class Step:
    """One step of a training.

    Attributes:
        done: steps done, this one included.
        total: all steps; 0 while a training for a given time runs.
        loss: mean over its tokens before it was taken, in nats per token.
        gradient_norm: norm of its gradient, before clipping.
        validation: the loss on held-out text after it, in nats per token; None where none was measured.
    """

    done: int
    total: int
    loss: float
    gradient_norm: float
    validation: float | None


@dataclass(frozen=True)
class Task:
    """A task that `Model.evaluate` can name.

    Attributes:
        name: as it is given.
        title: as people write it.
        items: items in the whole data set.
        quoted: the name of the metric that is quoted for it.
    """

    name: str
    title: str
    items: int
    quoted: str


@dataclass(frozen=True, repr=False)
class Finetuned(Table):
    """A trained model and how the training went.

    Attributes:
        model: the trained model; it shares the weights that were not trained.
        trained: how many parameters were trained, in words.
        steps: the steps, ascending.
        validations: (steps done, loss on held-out text) pairs, ascending. The first is from before the first step.
        tokens: tokens that passed both ways.
        parameters: parameters that were trained.
        seconds: duration of the steps.
        rounding: the error of rounding the changes to the type of the weights, as a share of the changes.
    """

    model: object
    trained: str
    steps: list[Step]
    validations: list[tuple[int, float]]
    tokens: int
    parameters: int
    seconds: float
    rounding: float

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [step.loss for step in self.steps]

    def _table(self):
        caption = f"{self.trained}; {len(self.steps)} steps, last loss {_shown(self.losses[-1])}"
        return caption, ["step", "held-out loss"], [list(pair) for pair in self.validations]
