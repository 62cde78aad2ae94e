"""Threads for plain functions: bounded, grown when needed, and never in the way of an exit."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from .leases import Part

_TAKEN_BY_FUTURES: Final = (Exception, KeyboardInterrupt, SystemExit)


@dataclass(slots=True, eq=False)
class Job:
    """A call of a plain function, and what it returned or raised."""

    function: Callable[[Any], Any]
    argument: object
    #: The records, when nobody awaits the call.
    parts: Sequence[Part]
    #: The context of this call alone.
    context: contextvars.Context
    #: Completed by the call, in the loop; None = nobody awaits it.
    future: asyncio.Future[Any] | None = None
    result: object = None
    error: BaseException | None = None

    def complete(self) -> None:
        """Completes the future. In the loop."""
        future = self.future
        assert future is not None, "somebody awaits it"
        error = self.error
        if error is None:
            future.set_result(self.result)
        elif isinstance(error, _TAKEN_BY_FUTURES) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # Futures refuse StopIteration, and CancelledError would mean something else there.
            told = RuntimeError(f"a plain function raised {type(error).__name__}")
            told.__cause__ = error
            future.set_exception(told)


_RETRY_S: Final = 1.0
"""After the system refused a thread, the next is tried so much later."""


class Threads:
    """At most `limit` threads that run jobs, and tell a loop of what they did.

    When the system gives no more of them, jobs wait for those that there are, or for a later try.

    Daemon threads: a handler that never returns must not keep a process alive whose worker has
    left. Use from the loop only.

    Args:
        limit: Most threads; more jobs than that at a time are never given.
        on_done: Called in the loop when there are finished jobs.
        on_refused: Called in the loop when the system refuses a thread, with what it says.
    """

    def __init__(
        self,
        limit: int,
        on_done: Callable[[], None],
        on_refused: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._on_refused = on_refused
        self._retry: asyncio.TimerHandle | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Job] = deque()
        self._is_loop_told = False
        self._open = 0
        self.count = 0

    def submit(self, job: Job) -> None:
        """Runs a job on a free thread, or on a new one."""
        self._open += 1
        self._queue.put(job)
        if self._retry is None:
            self._grow()

    def _grow(self) -> None:
        self._retry = None
        while self.count < min(self._open, self._limit):
            name = f"sharecoord-handler-{self.count + 1}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._retry = self._loop.call_later(_RETRY_S, self._grow)
                self._on_refused(error)
                return
            self.count += 1

    def take_done(self) -> list[Job]:
        # First, so that a job that finishes from here on tells the loop again.
        self._is_loop_told = False
        jobs: list[Job] = []
        while self._done:
            jobs.append(self._done.popleft())
        self._open -= len(jobs)
        return jobs

    def stop(self) -> None:
        """Ends the threads, each when its handler returns."""
        if self._retry is not None:
            self._retry.cancel()
        for _ in range(self.count):
            self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job.result = job.context.run(call_plain, job.function, job.argument)
            except BaseException as error:  # noqa: BLE001 - what a handler raises is its outcome
                job.error = error
            self._done.append(job)
            del job
            if not self._is_loop_told:
                self._is_loop_told = True
                try:
                    self._loop.call_soon_threadsafe(self._on_done)
                except RuntimeError:
                    # The loop is closed: the worker ended without waiting for this handler.
                    return


def call_plain(function: Callable[[Any], Any], argument: Any) -> Any:
    """Calls a plain function; TypeError when it returns an awaitable, which nobody would await."""
    result = function(argument)
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("a plain function returned an awaitable; define the handler with `async def`")
