"""What the actors of a coordinator share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from sharecoord.core.fleet.held_book import REMEMBERED_MS
from sharecoord.errors import (
    SharecoordError,
    StoreFatalError,
    StoreInUseError,
)
from sharecoord.ports import (
    DeadLetterSink,
    EventSink,
    LogReader,
    OffsetsExport,
    Store,
    TopicCatalog,
)
from sharecoord.runtime.kernel.budget import MemoryBudget, MemoryLimits
from sharecoord.runtime.kernel.calls import GatheredCalls
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.committer import CallbackEffect, Committable, Committer
from sharecoord.runtime.kernel.gatherer import Gatherer
from sharecoord.runtime.kernel.lease import Lease
from sharecoord.runtime.kernel.open_files import OpenFiles
from sharecoord.runtime.kernel.store_thread import StoreCaller
from sharecoord.runtime.kernel.supervisor import Supervisor

log = structlog.get_logger(__name__)


class ParkingLimits(NamedTuple):
    """How many delayed ranges of a share-partition are in memory; the simulator has fewer."""

    kept: int = 1_000
    """So many stay when some go, and after a claim."""
    most: int = 2_000
    """More than that: some go."""
    page: int = 1_000
    """So many are read at a time: a few milliseconds of the store's thread."""
    low: int = 500
    """With more than that in memory, none are read."""
    ahead_ms: int = 5_000
    """So long before they are due they are read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a coordinator bounds, beyond the settings of its groups."""

    memory: MemoryLimits = field(default_factory=MemoryLimits)
    parking: ParkingLimits = field(default_factory=ParkingLimits)
    groups_max: int = 10_000
    """`limits.groups.max`"""
    lock_grace_ms: int = 10_000
    """`recovery.lock.grace.ms`"""


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
    lease: Lease
    budget: MemoryBudget
    new_incarnation: Callable[[], int]
    """A number that no other claim has; chance is an argument."""
    limits: Limits = field(default_factory=Limits)
    files: OpenFiles | None = None
    """None where nobody counts them: in tests."""
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    in_fleet: bool = False
    """Whether there are, or may be, other coordinators on the same store."""
    offsets_export: OffsetsExport | None = None
    """None where no tools of Kafka's look on: in the simulator, and in tests."""
    dead_letters: DeadLetterSink | None = None
    """None where nothing is produced: in tests."""
    events: EventSink | None = None
    """None = nobody wants to know."""
    calls: GatheredCalls = field(init=False)
    lanes: Gatherer[None, None] | None = None
    """Looks at lanes; None without a coordinator, in tests."""
    lanes_known: bool = True
    """Whether there are no lanes but those that are open here: not before the store was asked, and
    never in a fleet, whose coordinators hear of lanes one after the other."""
    loops: Supervisor = field(init=False)
    """What must never end."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """What follows from the ports."""
        self.calls = GatheredCalls(self.store, self.caller, self.catalog)
        self.loops = Supervisor(self.spawn)

    @property
    def books_forget_after_ms(self) -> int | None:
        """See `decide_lock_book`: a gateway's book forgets, a member's own does not."""
        return REMEMBERED_MS // 2 if self.in_fleet else None

    async def committed(self, actor: Committable | None = None) -> SharecoordError | None:
        """Waits for the commit of everything decided so far; why it did not happen, or None.

        Args:
            actor: Whose commit is meant, which tells whether it still is the owner; None = all.
        """
        done: asyncio.Future[SharecoordError | None] = asyncio.get_running_loop().create_future()

        def let_go(error: SharecoordError | None) -> None:
            if not done.done():
                done.set_result(error)

        effect = CallbackEffect(let_go)
        if actor is None:
            self.committer.add_effect(effect)
        else:
            self.committer.add(actor, effect)
        return await done

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
        await self.calls.close()
        if self.lanes is not None:
            await self.lanes.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
