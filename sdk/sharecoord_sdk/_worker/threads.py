"""Threads for plain functions: bounded, grown when needed, and never in the way of an exit."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from .leases import Part


class Job:
    """A call of a plain function, and what it raised."""

    __slots__ = ("argument", "error", "function", "parts")

    def __init__(
        self, function: Callable[[Any], Any], argument: object, parts: Sequence[Part]
    ) -> None:
        self.function = function
        self.argument = argument
        self.parts = parts
        self.error: BaseException | None = None


class Threads:
    """At most `limit` threads that run jobs, and tell a loop of what they did.

    Daemon threads: a handler that never returns must not keep a process alive whose worker has
    left. Use from the loop only.

    Args:
        limit: Most threads; more jobs than that at a time are never given.
        on_done: Called in the loop when there are finished jobs.
    """

    def __init__(self, limit: int, on_done: Callable[[], None]) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Job] = deque()
        self._told = False
        self._open = 0
        self.count = 0

    def submit(self, job: Job) -> None:
        """Runs a job on a free thread, or on a new one."""
        self._open += 1
        if self.count < min(self._open, self._limit):
            self.count += 1
            name = f"sharecoord-handler-{self.count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._queue.put(job)

    def take_done(self) -> list[Job]:
        """The finished jobs."""
        # First, so that a job that finishes from here on tells the loop again.
        self._told = False
        jobs: list[Job] = []
        while self._done:
            jobs.append(self._done.popleft())
        self._open -= len(jobs)
        return jobs

    def stop(self) -> None:
        """Ends the threads, each when its handler returns."""
        for _ in range(self.count):
            self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                result = contextvars.copy_context().run(job.function, job.argument)
                if inspect.isawaitable(result):
                    _refuse(result)
            except BaseException as error:  # noqa: BLE001 - what a handler raises is its outcome
                job.error = error
            self._done.append(job)
            del job
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._on_done)
                except RuntimeError:
                    # The loop is closed: the worker ended without waiting for this handler.
                    return


def _refuse(result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("a plain function returned an awaitable; define the handler with `async def`")
