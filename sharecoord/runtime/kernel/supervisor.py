"""Runs all side work of a coordinator, and the loops that must never end, each in one way.

A loop that ends by an error that nobody expected begins again after a wait. Until it has proven
itself it counts as down: readiness, a metric and the log say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from sharecoord.errors import SharecoordError, StoreFatalError, StoreInUseError

log = structlog.get_logger(__name__)

RESTART_S = 0.1
"""First wait before a loop begins again; doubles. The lease outlives several waits."""

RESTART_MAX_S = 5.0
"""Longest such wait: its work is missing for so long after the fault is mended."""

PROVEN_S = 3.0
"""A loop that has run for so long is up again: every loop does its work before it waits, so most
of them have made several passes by then."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """The tasks of one coordinator.

    `on_fatal` hears that a task found the store lost: the process must end.
    """

    def __init__(self, on_fatal: Callable[[SharecoordError], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[Any]] = set()
        self.down: tuple[str, ...] = ()
        """The loops that are down, by name; replaced as a whole, so any thread may read it."""
        self.restarts: dict[str, int] = {}
        """How often each loop began again."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs side work that is stopped with the coordinator; its failure is logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)
        if isinstance(error, (StoreFatalError, StoreInUseError)):
            self._on_fatal(error)

    async def stop(self) -> None:
        """Cancels all tasks, and waits for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def keep(self, name: str, work: Work) -> asyncio.Task[None]:
        """Runs a loop until its task is cancelled; calls it again after an error or a return.

        Logs and metrics show the name.
        """
        self.restarts[name] = 0
        return self.spawn(self._keep(name, work), name)

    async def _keep(self, name: str, work: Work) -> None:
        loop = asyncio.get_running_loop()
        delay_s = RESTART_S
        while True:
            proof = loop.call_later(PROVEN_S, self._is_up, name)
            try:
                await work()
                log.error("a loop ended by itself; it begins again", loop=name)
            except (StoreFatalError, StoreInUseError):
                raise
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Something that this task waited for was cancelled, not the task.
                log.exception("a loop waited for what was cancelled; it begins again", loop=name)
            except Exception:
                log.exception("a loop failed; it begins again", loop=name)
            finally:
                proof.cancel()
            if name not in self.down:
                # It ran well until now.
                delay_s = RESTART_S
            self.down = tuple(sorted({*self.down, name}))
            self.restarts[name] += 1
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_MAX_S)

    def _is_up(self, name: str) -> None:
        if name in self.down:
            self.down = tuple(each for each in self.down if each != name)
            log.info("a loop runs again", loop=name)
