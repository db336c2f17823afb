# SPDX-License-Identifier: Apache-2.0
"""Reports of the progress of calls."""
from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ._results import Step


class Bar:
    """Writes the progress of a call to stderr."""

    def begin(self, phase: str, total: int) -> None:
        self.phase, self.total, self.done, self.shown = phase, total, 0, 0.0

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.shown > 0.1:
            self.shown = now
            self.show("")

    def end(self) -> None:
        self.show("\n")

    def show(self, end: str) -> None:
        total = f" of {self.total}" if self.total else ""  # there is none of a training for a given time
        print(f"\r{self.phase}: {self.done}{total}", end=end, file=sys.stderr, flush=True)


class Calls:
    """Hands the progress of a call to a function of (phase, done, total)."""

    def __init__(self, function: Callable[[str, int, int], None]):
        self.function = function

    def begin(self, phase: str, total: int) -> None:
        self.phase, self.total, self.done = phase, total, 0
        self.function(phase, 0, total)

    def advance(self, count: int) -> None:
        self.done += count
        self.function(self.phase, self.done, self.total)

    def end(self) -> None:
        pass


class Steps:
    """Hands the steps of a training to an object with the methods of progress."""

    def __init__(self, listener):
        self.listener, self.done = listener, 0

    def __call__(self, step: Step) -> None:
        if self.done == 0:
            self.listener.begin("recover", step.total)
        if step.done > self.done:
            self.listener.advance(step.done - self.done)
        self.done = step.done

    def end(self) -> None:
        if self.done:
            self.listener.end()


def listener_of(progress):
    """The object with the methods of progress that an argument `progress` stands for, or None."""
    if progress is True:
        return Bar()
    return Calls(progress) if callable(progress) else progress or None
