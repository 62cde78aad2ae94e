"""Threads for plain functions: bounded, grown when needed, and never in the way of an exit."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final

from .leases import Part

_TOLD: Final = (Exception, KeyboardInterrupt, SystemExit)


class Job:
    """A call of a plain function, and what it returned or raised.

    Args:
        function: To be called.
        argument: With this.
        parts: The records, when nobody awaits the call.
        future: Whoever awaits it, in the loop.
        context: What the function sees of the caller's context.
    """

    __slots__ = ("argument", "context", "error", "function", "future", "parts", "result")

    def __init__(
        self,
        function: Callable[[Any], Any],
        argument: object,
        parts: Sequence[Part],
        future: asyncio.Future[Any] | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.function = function
        self.argument = argument
        self.parts = parts
        self.future = future
        self.context = context
        self.result: object = None
        self.error: BaseException | None = None

    def tell(self) -> None:
        """Tells whoever awaits it. In the loop."""
        future = self.future
        assert future is not None, "somebody awaits it"
        error = self.error
        if error is None:
            future.set_result(self.result)
        elif isinstance(error, _TOLD) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # What no future takes, and what means something else to who awaits it.
            told = RuntimeError(f"a plain function raised {type(error).__name__}")
            told.__cause__ = error
            future.set_exception(told)


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
                context = job.context or contextvars.copy_context()
                job.result = context.run(job.function, job.argument)
                if inspect.isawaitable(job.result):
                    _refuse(job.result)
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
