"""What the actors of a coordinator share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from sharecoord.core.changes import LoadedPartition, MemberRow, PartitionClaim, PartitionStart
from sharecoord.core.held_book import REMEMBERED_MS
from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    StoreFatalError,
    StoreInUseError,
)
from sharecoord.ports import (
    DeadLetterSink,
    EventSink,
    LogReader,
    OffsetQuery,
    OffsetsExport,
    Store,
    TopicCatalog,
)
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.committer import Committable, Committer
from sharecoord.runtime.effects import CallbackEffect
from sharecoord.runtime.gatherer import Gatherer
from sharecoord.runtime.memory_budget import MemoryBudget, MemoryLimits
from sharecoord.runtime.parking import ParkingLimits
from sharecoord.runtime.store_thread import StoreCaller

if TYPE_CHECKING:
    from sharecoord.runtime.fleet import Fleet

log = structlog.get_logger(__name__)


CLAIMS_MAX = 40
"""Share-partitions of one claim. Each may bring thousands of ranges: those that are loaded are
served, and commits go on, while the others wait for the next one (40 x 2,000 ranges: 0.2 s)."""


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
    parking: ParkingLimits = field(default_factory=ParkingLimits)
    groups_max: int = 10_000
    """`limits.groups.max`"""
    lock_grace_ms: int = 10_000
    store_ok: bool = True
    """Whether the last renewal of the lease came through."""
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    lease_ms: int = 4_000
    """After so long without renewal, by the store's clock, a coordinator counts as dead."""
    lease_renewal_s: float = 1.0
    fleet: Fleet | None = None
    """The other coordinators; None for a lone one."""
    offsets_export: OffsetsExport | None = None
    """None where no tools of Kafka's look on: in the simulator, and in tests."""
    dead_letters: DeadLetterSink | None = None
    """None where nothing is produced: in tests."""
    events: EventSink | None = None
    """None = nobody wants to know."""
    joins: Gatherer[MemberRow, int | None] = field(init=False)
    """Members; their epochs."""
    claims: Gatherer[PartitionClaim, LoadedPartition | None] = field(init=False)
    starts: Gatherer[PartitionStart, bool] = field(init=False)
    members: Gatherer[None, list[MemberRow]] = field(init=False)
    """All members of all groups: many share-partitions that are loaded together ask once."""
    lanes: Gatherer[None, None] | None = None
    """Looks at lanes; None without a coordinator, in tests."""
    _places: dict[bool, Gatherer[OffsetQuery, int | None]] = field(init=False)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """What follows from the ports."""
        store, call = self.store, self.caller.call
        self.joins = Gatherer(
            lambda rows: call(store.join_members, rows), name="joins", key=_member_of
        )
        self.claims = Gatherer(
            lambda claims: call(store.claim_partitions, claims),
            name="claims",
            key=_id_of,
            calls_max=CLAIMS_MAX,
        )
        self.starts = Gatherer(
            lambda starts: call(store.initialize_partitions, starts), name="starts", key=_id_of
        )
        self.members = Gatherer(self._members, name="members")
        self._places = {
            committed: Gatherer(partial(self._offsets, committed=committed), name="offsets")
            for committed in (False, True)
        }

    @property
    def books_forget_after_ms(self) -> int | None:
        """See `decide_lock_book`: a gateway's book forgets, a member's own does not."""
        return None if self.fleet is None else REMEMBERED_MS // 2

    async def offset(self, query: OffsetQuery, *, committed: bool = False) -> int:
        """The offset at a place; see `TopicCatalog.offsets`.

        Raises:
            KafkaUnavailableError: Kafka did not answer for this partition.
        """
        found = await self._places[committed].ask(query)
        if found is None:
            place = f"{query.topic}[{query.partition}]"
            raise KafkaUnavailableError(f"no offsets for {place} from Kafka")
        return found

    async def _members(self, asked: list[None]) -> list[list[MemberRow]]:
        return [await self.caller.call(self.store.load_members)] * len(asked)

    async def _offsets(self, queries: list[OffsetQuery], *, committed: bool) -> list[int | None]:
        found = await self.catalog.offsets(queries, committed=committed)
        return [found.get(query) for query in queries]

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
        await self.joins.close()
        await self.claims.close()
        await self.starts.close()
        await self.members.close()
        if self.lanes is not None:
            await self.lanes.close()
        for offsets in self._places.values():
            await offsets.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _member_of(member: MemberRow) -> tuple[str, str]:
    return member.group_id, member.member_id


def _id_of(change: PartitionClaim | PartitionStart) -> int:
    return change.partition_id
