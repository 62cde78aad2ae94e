"""Progress of a run: a bar with the time left in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

_MINUTE_S = 60


class Estimate:
    """Estimates the time left from expected times and from how well earlier steps met theirs."""

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s = total_s
        self._expected_s = self._taken_s = 0.0
        self._step_s = 0.0
        self._began_s = clock()

    def begin(self, expected_s: float) -> None:
        """Notes that a step begins, and how long it should take."""
        self._step_s = expected_s
        self._began_s = self._clock()

    def end(self) -> None:
        """Notes that the step is done."""
        self._taken_s += self._clock() - self._began_s
        self._expected_s += self._step_s
        self._left_s = max(0.0, self._left_s - self._step_s)
        self._step_s = 0.0

    def left_s(self) -> float:
        """Seconds left of all steps."""
        factor = self._taken_s / self._expected_s if self._expected_s else 1.0
        running_s = self._clock() - self._began_s if self._step_s else 0.0
        return max(0.0, self._left_s * factor - running_s)


def time_left(seconds: float) -> str:
    """A time in words, such as `2 min 05 s left`."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s left"
    return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s left"


class PlainProgress:
    """Lines on a stream: one for each step that is done, with its number and the time left."""

    def __init__(self, steps: int, total_s: float, stream: TextIO) -> None:
        self._steps = steps
        self._number = 0
        self._what = ""
        self._stream = stream
        self._estimate = Estimate(total_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def say(self, line: str) -> None:
        """Writes a line that stays."""
        print(line, file=self._stream, flush=True)

    def begin(self, what: str, expected_s: float) -> None:
        """Notes that a step begins."""
        self._number += 1
        self._what = what
        self._estimate.begin(expected_s)

    def tick(self) -> None:
        """Does nothing here; called often while a step runs."""

    def end(self, outcome: str) -> None:
        """Writes the line of a step that is done, with its outcome in words."""
        self._estimate.end()
        left = time_left(self._estimate.left_s())
        self.say(f"[{self._number}/{self._steps}] {self._what}: {outcome} ({left})")


class BarProgress(PlainProgress):
    """The same lines above a bar of Rich's, which moves while a step runs."""

    def __init__(self, steps: int, total_s: float, stream: TextIO) -> None:
        """Nothing is drawn before the `with` block; arguments as of `PlainProgress`."""
        # Loaded here: a run without a terminal needs none of it.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        super().__init__(steps, total_s, stream)
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
        columns += [MofNCompleteColumn(), TextColumn("{task.fields[left]}")]
        self._bar = Progress(*columns, console=Console(file=stream), transient=True)
        self._task = self._bar.add_task("starting", total=steps, left=time_left(total_s))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Writes a line above the bar."""
        self._bar.console.print(line, markup=False, highlight=False)

    def begin(self, what: str, expected_s: float) -> None:
        """Names the step."""
        super().begin(what, expected_s)
        self._bar.update(self._task, description=what)

    def tick(self) -> None:
        """Moves the time left."""
        self._bar.update(self._task, left=time_left(self._estimate.left_s()))

    def end(self, outcome: str) -> None:
        """A line above the bar, and one step forward."""
        super().end(outcome)
        self._bar.advance(self._task)


def open_progress(steps: int, total_s: float, stream: TextIO | None = None) -> PlainProgress:
    """A bar when the stream is a terminal, else lines."""
    chosen = stream or sys.stderr
    return (BarProgress if chosen.isatty() else PlainProgress)(steps, total_s, chosen)
