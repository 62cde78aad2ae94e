"""Runs the loops that must never end, all in one way.

A loop that ends by an error that nobody expected begins again after a wait. Until it has proven
itself it counts as down: readiness, a metric and the log say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from sharecoord.errors import StoreFatalError, StoreInUseError

log = structlog.get_logger(__name__)

RESTART_S = 0.1
"""First wait before a loop begins again; doubles. The lease outlives several such waits."""

RESTART_MAX_S = 5.0
"""Longest such wait: what the loop does is missing for so long after the fault is mended."""

PROVEN_S = 3.0
"""A loop that has run for so long is up again: every loop does its work before it waits, so most
of them have made several passes by then."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Spawn(Protocol):
    """Starts a task that ends with the coordinator."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """The task."""


class Supervisor:
    """The loops of one coordinator.

    Args:
        spawn: Starts tasks. What ends the process (the store is lost) ends the task of its loop;
            whoever spawned it hears so.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.down: tuple[str, ...] = ()
        """The loops that are down, by name; replaced as a whole, so any thread may read it."""
        self.restarts: dict[str, int] = {}
        """How often each loop began again."""

    def keep(self, name: str, work: Work) -> asyncio.Task[None]:
        """Runs a loop until its task is cancelled.

        Args:
            name: Of the loop, for people and metrics.
            work: The loop; called again after an error, or should it return.
        """
        self.restarts[name] = 0
        return self._spawn(self._keep(name, work), name)

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
                # Not this task was cancelled, but something that it waited for.
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
