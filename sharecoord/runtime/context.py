"""What the actors of a coordinator share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from sharecoord.errors import StoreFatalError, StoreInUseError
from sharecoord.ports import LogReader, Store, TopicCatalog
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.committer import Committer
from sharecoord.runtime.joins import JoinQueue
from sharecoord.runtime.record_cache import MemoryBudget, MemoryLimits
from sharecoord.runtime.store_thread import StoreCaller

log = structlog.get_logger(__name__)


@dataclass
class Context:
    """Ports, clock and limits."""

    coordinator_id: str
    store: Store
    caller: StoreCaller
    reader: LogReader
    catalog: TopicCatalog
    clock: RuntimeClock
    committer: Committer
    budget: MemoryBudget
    new_incarnation: Callable[[], int]
    """A number that no other claim has; chance is an argument."""
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    lock_grace_ms: int = 10_000
    store_ok: bool = True
    """Whether the last renewal of the lease came through."""
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    joins: JoinQueue = field(init=False)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """What follows from the ports."""
        self.joins = JoinQueue(self.store, self.caller)

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
            self.committer.fail(error)

    async def stop_tasks(self) -> None:
        """Cancels what still runs, and waits for it."""
        await self.joins.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
