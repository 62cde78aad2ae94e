"""How far Spark is, on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S: Final = 0.3
"""Between two looks at Spark's status tracker; each costs a few calls into the JVM."""

LINE_S: Final = 10.0
"""Between two lines where there is no terminal; what ends before says nothing."""


def is_submitted() -> bool:
    """Whether `spark-submit` runs this program: it writes its stderr into its stdout."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class Tracker(Protocol):
    """What is used of `pyspark.StatusTracker`."""

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        """Stages that run now."""

    def getStageInfo(self, stageId: int) -> object | None:  # noqa: N802, N803 - Spark's names
        """Number of tasks of a stage, and how many are done."""


def tasks(tracker: Tracker) -> tuple[int, int]:
    """Tasks that are done and tasks in all, of the stages that run now."""
    done = total = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        # A stage may end between the two calls.
        if info is not None:
            done += int(getattr(info, "numCompletedTasks", 0))
            total += int(getattr(info, "numTasks", 0))
    return done, total


@contextmanager
def shown(session: SparkSession, what: str, *, steps: int = 1) -> Iterator[Steps]:
    """Shows the tasks of what runs inside; `Steps.at` names what comes next.

    Args:
        session: Where it runs.
        what: The first step, as people call it.
        steps: How many there will be.
    """
    bar = Steps(what, steps)
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        with said_at_times(lambda: _line(session, bar)):
            yield bar
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    tracker = session.sparkContext.statusTracker()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task(bar.text, total=1)

        def look() -> None:
            while not ended.wait(INTERVAL_S):
                done, total = tasks(tracker)
                progress.update(line, description=bar.text, completed=done, total=max(total, 1))

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            ended.set()
            thread.join()


def _line(session: SparkSession, bar: Steps) -> str:
    done, total = tasks(session.sparkContext.statusTracker())
    return f"{session.sparkContext.appName}: step {bar.text}, {done} of {total} tasks"


@contextmanager
def said_at_times(text: Callable[[], str]) -> Iterator[None]:
    """Prints on stderr every `LINE_S` seconds what goes on inside, and for how long.

    Under `spark-submit`, where it would stand in the job's output, nothing: Spark's page shows it.

    Args:
        text: What goes on; it is asked for by another thread.
    """
    if is_submitted():
        yield
        return
    ended, start_s = threading.Event(), time.monotonic()

    def say() -> None:
        while not ended.wait(LINE_S):
            with suppress(Exception):  # Spark may be gone; its error is told elsewhere
                sys.stderr.write(f"{text()} ({time.monotonic() - start_s:.0f} s)\n")
                sys.stderr.flush()

    thread = threading.Thread(target=say, name="progress lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Steps:
    """Which part of a job runs."""

    def __init__(self, what: str, steps: int) -> None:
        self._what, self._number, self._steps = what, 1, steps

    @property
    def text(self) -> str:
        """The part's number and name."""
        return f"{self._number}/{self._steps} {self._what}"

    def at(self, number: int, what: str) -> None:
        """This part begins; the first is number 1."""
        self._number, self._what = number, what
