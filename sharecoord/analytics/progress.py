"""Spark's progress on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S: Final = 0.3
"""Time between two looks at Spark's status tracker; each costs a few calls into the JVM."""

LINE_S: Final = 10.0
"""Time between two lines where there is no terminal; what ends before says nothing."""


def is_submitted() -> bool:
    """Whether `spark-submit` runs this program: it writes its stderr into its stdout."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def tasks(session: SparkSession) -> tuple[int, int]:
    """Number of tasks that are done, and of all tasks, of the stages that run now."""
    tracker = session.sparkContext.statusTracker()
    done = total = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:  # the stage may have ended between the two calls
            done += info.numCompletedTasks
            total += info.numTasks
    return done, total


class Steps:
    """The step of a job that runs now; what comes before the first step is shown as the first."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._number = names, 0

    @property
    def text(self) -> str:
        """The step's number, from 1 on, and its name."""
        number = max(self._number, 1)
        return f"{number}/{len(self._names)} {self._names[number - 1]}"

    def next(self) -> None:
        """The next step begins."""
        self._number += 1


@contextmanager
def shown(session: SparkSession, *names: str) -> Iterator[Steps]:
    """Shows the tasks of the steps inside, on a terminal as a bar."""
    step = Steps(names)
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        name = session.sparkContext.appName

        def line() -> str:
            done, total = tasks(session)
            return f"{name}: step {step.text}, {done} of {total} tasks"

        with said_at_times(line):
            yield step
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(step.text, total=1)

        def look() -> None:
            done, total = tasks(session)
            progress.update(bar, description=step.text, completed=done, total=max(total, 1))

        with _repeated(look, INTERVAL_S, "progress"):
            yield step


@contextmanager
def said_at_times(text: Callable[[], str]) -> Iterator[None]:
    """Prints on stderr every `LINE_S` seconds what goes on inside, and for how long.

    Another thread calls `text`. Under `spark-submit` nothing is printed: the lines would stand in
    the job's output, and Spark's page shows the progress.
    """
    if is_submitted():
        yield
        return
    start_s = time.monotonic()

    def say() -> None:
        with suppress(Exception):  # Spark may be gone; its error is told elsewhere
            sys.stderr.write(f"{text()} ({time.monotonic() - start_s:.0f} s)\n")
            sys.stderr.flush()

    with _repeated(say, LINE_S, "progress lines"):
        yield


@contextmanager
def _repeated(call: Callable[[], None], interval_s: float, name: str) -> Iterator[None]:
    """Calls in a thread of its own at every interval, until the block ends."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(interval_s):
            call()

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
